#include "cli/plan_summary.h"

#include <algorithm>

#include "cli/progress.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::cli {

uint64_t PeakArenaBytes(const planner::Plan& plan) {
  uint64_t peak = 0;
  for (const planner::DevicePlan& device : plan.devices) peak = std::max(peak, device.arena_bytes);
  return peak;
}

std::string SummarizePlan(const planner::Plan& plan) {
  const planner::PlanCounts counts = planner::Count(plan);
  return StrCat("plan: ", plan.strategy, ", ", Counted(plan.num_microbatches, "micro-batch", "es"),
                ", ", Counted(plan.stages.size(), "stage"), ", schedule ", plan.policy, "\n      ",
                Counted(plan.devices.size(), "device"), " of ",
                Counted(plan.threads_per_device, "thread"), ", ", Counted(counts.actors, "actor"),
                ", ", Counted(counts.channels, "channel"), ", ",
                Counted(counts.collectives, "collective"), "\n      up to ",
                FormatBytes(PeakArenaBytes(plan)), " a device, predicted step ",
                FormatSeconds(plan.predicted_step_s), "\n");
}

std::string SummarizeJob(const JobGraph& job) {
  std::string text = StrCat("job:  ", job.graph.name(), ", ",
                            FormatCount(static_cast<double>(job.num_parameters)), " parameters\n");
  if (!job.note.empty()) StrAppend(&text, "      ", job.note, "\n");
  return text;
}

}  // namespace penstock::cli
