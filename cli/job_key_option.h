// The job's key, for the commands that connect to a coordinator.
//
// Thread rule: pure, but for the file, the input and the environment.

#ifndef PENSTOCK_CLI_JOB_KEY_OPTION_H_
#define PENSTOCK_CLI_JOB_KEY_OPTION_H_

#include <string>

#include "absl/status/statusor.h"

namespace penstock::cli {

// 64 hexadecimal digits from the file of --key-file ("-": the first line of the standard
// input), or where it is empty from PENSTOCK_KEY.
absl::StatusOr<std::string> ReadJobKey(const std::string& key_file);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_KEY_OPTION_H_
