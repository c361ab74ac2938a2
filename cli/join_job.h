// A node of a job, as `penstock node` and a member of a launch run it: with the devices of its kind
// and, for `penstock stack` and `penstock top` on this host, a status socket.
//
// Thread rule: blocks its caller.

#ifndef PENSTOCK_CLI_JOIN_JOB_H_
#define PENSTOCK_CLI_JOIN_JOB_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "cli/environment.h"

#include "actors/cluster/node.h"

namespace penstock::cli {

// Fills in kernels, devices and policies, and runs the node to the end of the job. Unless
// `is_quiet`, says when the node has joined and when the job is done, and opens the status socket.
// `on_joined` of `node` is called as well. What the process prints is kept in a file of
// `log_folder` (node_log.h), from the start if the rank is known there; empty: nowhere.
absl::Status JoinJob(const Environment& environment, actors::NodeOptions node,
                     std::string_view devices, bool is_quiet, const std::string& log_folder);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOIN_JOB_H_
