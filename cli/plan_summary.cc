#include "cli/plan_summary.h"

#include <algorithm>

#include "cli/progress.h"

#include "base/strings.h"
#include "planner/format.h"

namespace penstock::cli {
namespace {

// "1 stage", "2 stages".
std::string Counted(uint64_t count, std::string_view noun, std::string_view plural) {
  return StrCat(count, " ", noun, count == 1 ? "" : plural);
}

}  // namespace

uint64_t PeakArenaBytes(const planner::Plan& plan) {
  uint64_t peak = 0;
  for (const planner::DevicePlan& device : plan.devices) peak = std::max(peak, device.arena_bytes);
  return peak;
}

std::string SummarizePlan(const planner::Plan& plan) {
  const planner::PlanCounts counts = planner::Count(plan);
  return StrCat("plan: ", plan.strategy, ", ", Counted(plan.num_microbatches, "micro-batch", "es"),
                ", ", Counted(plan.stages.size(), "stage", "s"), ", schedule ", plan.policy,
                "\n      ", Counted(plan.devices.size(), "device", "s"), ", ", counts.actors,
                " actors, ", counts.channels, " channels, ", counts.collectives,
                " collectives\n      up to ", planner::FormatBytes(PeakArenaBytes(plan)),
                " a device, predicted step ", planner::FormatSeconds(plan.predicted_step_s), "\n");
}

std::string SummarizeJob(const JobGraph& job) {
  std::string text = StrCat("job:  ", job.graph.name(), ", ",
                            FormatCount(static_cast<double>(job.num_parameters)), " parameters\n");
  if (!job.note.empty()) StrAppend(&text, "      ", job.note, "\n");
  return text;
}

}  // namespace penstock::cli
