// What a failed job says: its error, the last lines of the node that has failed, where its log is,
// and how the job goes on.
//
// Thread rule: any thread.

#ifndef PENSTOCK_CLI_FAILURE_REPORT_H_
#define PENSTOCK_CLI_FAILURE_REPORT_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace penstock::cli {

// Prints "penstock: ..." unless that was done. A part of the program that has more to do, or to
// print, calls it before that: what has started the members of a job ends them as soon as one has
// died, and the others must have said why by then.
void TellError(std::ostream& err, absl::Status* status);

// Of an error that another process has printed.
void MarkTold(absl::Status* status);

struct FailedNode {
  uint32_t rank = 0;
  std::string host = {};                     // empty: not known, it has not joined
  std::string host_in_log = {};              // in the name of its log; empty: the same
  std::string log_folder = {};               // of the node; empty: it keeps no log
  std::vector<std::string> last_lines = {};  // oldest first
};

// Whether a process whose starter has exited with this status may have begun: ssh exits with 255
// where it fails itself, a shell with 126 or 127 where it cannot run the program.
bool MayHaveBegun(int exit_status);

// Lines for the user, with their newlines; empty where there is nothing to say.
std::string DescribeLog(const FailedNode& node);

// How a job was started.
struct JobCommand {
  std::string program = "penstock";         // as it was called
  std::vector<std::string> arguments = {};  // of it
  std::string starter = {};                 // LaunchPlan::starter
  bool needs_variables = false;             // LaunchPlan::needs_variables
};

// The command that goes on from the last checkpoint: "penstock launch -H a,b -- job.toml --resume".
// Of a starter the options are not known: "srun ... penstock launch -- job.toml --resume".
std::string ResumeCommand(const JobCommand& command);

// What a node or the user is told: "continue from the last checkpoint in FOLDER, on HOST, with: cd
// ... && penstock run ... --resume". With `needs_variables`, it says that each process needs its
// variables again. `checkpoint_folder` is where it is written; empty: nothing is said.
// `is_certain`: whether one is there; else the hint says "if one was written".
std::string ResumeHint(const std::string& checkpoint_folder, bool is_certain,
                       const std::string& working_folder, const std::string& host,
                       const JobCommand& command);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FAILURE_REPORT_H_
