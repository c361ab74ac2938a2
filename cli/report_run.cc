#include "cli/report_run.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <set>

#include "cli/files.h"
#include "cli/plan_summary.h"
#include "cli/progress.h"
#include "fmt/format.h"

#include "actors/cluster/node_place.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/shape.h"
#include "base/strings.h"
#include "penstock/version.h"
#include "planner/plan/plan.h"

namespace penstock::cli {
namespace {

int64_t NumParameters(const planner::Plan& plan) {
  int64_t count = 0;
  for (const planner::StatePlan& state : plan.states) {
    if (state.is_parameter) count += NumElements(state.type.shape);
  }
  return count;
}

// "Linux 6.1.0, x86_64, built by GCC 12.2.0".
std::string System() {
  utsname name = {};
  std::string text;
  if (uname(&name) == 0) text = StrCat(name.sysname, " ", name.release, ", ", name.machine, ", ");
#if defined(__clang__)
  return StrCat(text, "built by Clang ", __clang_major__, ".", __clang_minor__);
#else
  return StrCat(text, "built by GCC ", __VERSION__);
#endif
}

// The largest of the processes that the job ran here; 0: not known.
double PeakBytes(bool is_in_this_process) {
  rusage usage = {};
  if (getrusage(is_in_this_process ? RUSAGE_SELF : RUSAGE_CHILDREN, &usage) != 0) return 0;
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

std::string DevicesText(const RunDescription& run) {
  std::string text =
      DescribeDevices(run.job, static_cast<int64_t>(run.plan.devices.size()), run.threads);
  if (run.nodes.empty()) return StrCat(text, " in one process");
  std::set<std::string> hosts;
  for (const actors::NodeDescription& node : run.nodes) hosts.insert(node.host);
  return StrCat(text, " in ", Counted(run.nodes.size(), "process", "es"), " on ",
                Counted(hosts.size(), "host"));
}

std::string StepsText(const RunDescription& run) {
  std::string text = StrCat(run.steps);
  if (run.first_step > 0) StrAppend(&text, " after the first ", run.first_step);
  StrAppend(&text, ", ", Counted(run.batch, "sequence"), " each");
  if (run.tokens_per_step > 0) StrAppend(&text, ", ", Counted(run.tokens_per_step, "token"));
  return text;
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S %Z", time, absl::LocalTimeZone());
}

}  // namespace

void DescribeRun(const RunDescription& run, Report* report) {
  const planner::Plan& plan = run.plan;
  report->title = plan.name;
  report->version = kVersion;
  report->subtitle = StrCat(plan.strategy.empty() ? "no strategy" : plan.strategy, " \u00b7 ",
                            Counted(plan.devices.size(), "device"), " \u00b7 ",
                            Counted(plan.num_microbatches, "micro-batch", "es"), " \u00b7 ",
                            Counted(run.steps, "step"), " \u00b7 ", TimeText(run.begin));
  const auto add = [report](std::string_view name, std::string value) {
    if (!value.empty()) report->facts.push_back({std::string(name), std::move(value)});
  };
  add(HasSuffix(run.file, ".plan") ? "Plan" : "Job", run.file);
  add("Plan", run.plan_file);
  add("Command", ShellCommand(run.arguments));
  add("Model", StrCat(plan.name, ", ", FormatParameters(NumParameters(plan))));
  add("Strategy", plan.strategy);
  add("Schedule", StrCat(plan.policy, ", ", Counted(plan.num_microbatches, "micro-batch", "es"),
                         ", ", Counted(plan.stages.size(), "stage")));
  add("Devices", DevicesText(run));
  add("Cluster", run.job.cluster.file.empty() ? "this machine" : run.job.cluster.file);
  add("Host", StrCat(HostName(), ", ", Counted(UsableCores(), "usable core"), " of ",
                     MachineCores(), ", ", FormatBytes(MachineMemoryBytes())));
  add("Steps", StepsText(run));
  add("Resumed from", run.resumed_from);
  add("Plan size", StrCat(Counted(planner::Count(plan).actors, "actor"), ", ",
                          Counted(planner::Count(plan).channels, "channel"), ", ",
                          Counted(planner::Count(plan).collectives, "collective")));
  add("Began", TimeText(run.begin));
  add("Took", FormatSeconds(absl::ToDoubleSeconds(run.end - run.begin)));
  add("Version", StrCat("penstock ", report->version));
  add("System", System());
  for (const actors::NodeDescription& node : run.nodes) {
    constexpr size_t kMaxProcesses = 256;
    if (report->processes.size() == kMaxProcesses) break;
    report->processes.push_back({actors::NameOf(node), actors::ToString(node)});
  }
  for (const planner::ProgramSetting& setting : plan.settings) {
    report->settings.push_back({setting.name, setting.value});
  }
  report->peak_process_bytes = PeakBytes(run.nodes.empty());
}

bool IsPage(std::string_view file) { return HasSuffix(file, ".html") || HasSuffix(file, ".htm"); }

std::string ShellCommand(const std::vector<std::string>& arguments) {
  std::string text = "penstock";
  for (const std::string& argument : arguments)
    StrAppend(&text, " ", actors::QuoteForShell(argument));
  return text;
}

}  // namespace penstock::cli
