// The file in which a node keeps what it prints, on its own host: FOLDER/HOST.RANK.log.
//
// What is printed goes through `tee`, a process of its own, which ends when the node has: so the
// last lines of a node that is killed are in the file, and a coordinator that is gone does not
// matter to it.
//
// Thread rule: pure functions but for KeepOutput, which redirects the output of the process: once.

#ifndef PENSTOCK_CLI_NODE_LOG_H_
#define PENSTOCK_CLI_NODE_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock::cli {

// Of a job: below /tmp, of this user and day. `job` is what tells it from others, such as the
// number of the process that has started it.
std::string DefaultLogFolder(std::string_view job);

std::string LogPath(std::string_view folder, std::string_view host, int64_t rank);

// From now on, what this process prints goes to the file as well. It is appended to what an earlier
// process has left there; it belongs to this user, whom alone it lets read.
absl::Status KeepOutput(const std::string& path);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_NODE_LOG_H_
