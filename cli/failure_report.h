// What a failed job says beside its error: the last lines of the node that has failed, where its
// log is, and how the job goes on.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_FAILURE_REPORT_H_
#define PENSTOCK_CLI_FAILURE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace penstock::cli {

struct FailedNode {
  uint32_t rank = 0;
  std::string host = {};                     // empty: not known
  std::string log_folder = {};               // of the node; empty: it keeps no log
  std::vector<std::string> last_lines = {};  // oldest first
};

// Lines for the user, with their newlines; empty where there is nothing to say.
std::string DescribeLog(const FailedNode& node);

// The command line (without the program's name) that goes on from the last checkpoint, after that
// of `arguments`: "penstock launch -H a,b -- job.toml --resume".
std::string ResumeCommand(absl::Span<const std::string> arguments);

// What a node or the user is told: "continue from the last checkpoint in FOLDER, on HOST: cd ... &&
// penstock run ... --resume". `checkpoint_folder` is where it is written; empty: nothing is said.
std::string ResumeHint(const std::string& checkpoint_folder, const std::string& working_folder,
                       const std::string& host, absl::Span<const std::string> arguments);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FAILURE_REPORT_H_
