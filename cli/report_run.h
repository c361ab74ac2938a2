// What a page says of the run itself: what was run, by which command, where and when.
//
// Thread rule: pure functions but for what they ask the system.

#ifndef PENSTOCK_CLI_REPORT_RUN_H_
#define PENSTOCK_CLI_REPORT_RUN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "cli/job.h"
#include "cli/report.h"

#include "actors/cluster/node_description.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

struct RunDescription {
  const Job& job;
  const planner::Plan& plan;
  std::string file;       // the job or the plan
  std::string plan_file;  // of --plan
  std::vector<std::string> arguments;
  std::vector<actors::NodeDescription> nodes;  // empty: all devices are in this process
  int64_t threads = 1;                         // a device
  int64_t batch = 0;
  int64_t tokens_per_step = 0;  // 0: no text
  int64_t first_step = 0;       // steps of the runs that this one continues
  int64_t steps = 0;
  std::string resumed_from;  // a checkpoint
  absl::Time begin;
  absl::Time end;
};

// The title, facts, processes and settings of the report, and the memory of processes.
void DescribeRun(const RunDescription& run, Report* report);

// Whether --report FILE is to be a page (.html or .htm), or else Markdown.
bool IsPage(std::string_view file);

// A command as a shell would take it: "penstock run 'my job.toml' --set train.steps=5".
std::string ShellCommand(const std::vector<std::string>& arguments);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_RUN_H_
