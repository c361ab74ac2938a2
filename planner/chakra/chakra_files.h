// The files of a folder of Chakra traces: a trace for each rank, NAME.RANK.et, and
// comm_groups.json.
//
// Thread rule: functions of the file system.

#ifndef PENSTOCK_PLANNER_CHAKRA_CHAKRA_FILES_H_
#define PENSTOCK_PLANNER_CHAKRA_CHAKRA_FILES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::planner {

// As they are written: trace.RANK.et.
std::string ChakraTracePath(const std::string& folder, uint32_t rank);
std::string ChakraGroupsPath(const std::string& folder);

// Traces of any name, by rank. Errors: the folder cannot be read, holds no trace, or two of one
// rank.
absl::StatusOr<std::map<uint32_t, std::string>> FindChakraTraces(const std::string& folder);

// The bytes of a trace or of the groups. Errors name the file: it is not a regular one, which may
// have no end, or cannot be read.
absl::StatusOr<std::string> ReadChakraFile(const std::string& path);

// Removes the files that ChakraTracePath names, of all ranks.
absl::Status RemoveChakraTraces(const std::string& folder);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CHAKRA_CHAKRA_FILES_H_
