#include "cli/plan_summary.h"

#include <algorithm>

#include "cli/progress.h"

#include "actors/engine/check_plan.h"
#include "actors/engine/device_memory.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::cli {

uint64_t PeakArenaBytes(const planner::Plan& plan) {
  uint64_t peak = 0;
  for (const planner::DevicePlan& device : plan.devices) peak = std::max(peak, device.arena_bytes);
  return peak;
}

CollectiveBuffers PeakCollectiveBuffers(const planner::Plan& plan) {
  CollectiveBuffers peak;
  if (!actors::CheckPlan(plan).ok()) return peak;  // it will be refused
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    const auto bytes = [&plan, d](bool can_view) {
      return actors::MemoryOf(
                 plan, d, [can_view](uint32_t, uint32_t) { return can_view; }, true)
          .collective_bytes;
    };
    peak.on_host_bytes = std::max(peak.on_host_bytes, bytes(true));
    peak.remote_bytes = std::max(peak.remote_bytes, bytes(false));
  }
  return peak;
}

std::string SummarizePlan(const planner::Plan& plan) {
  const planner::PlanCounts counts = planner::Count(plan);
  const CollectiveBuffers buffers = PeakCollectiveBuffers(plan);
  std::string memory = StrCat(FormatBytes(PeakArenaBytes(plan)), " a device");
  if (buffers.remote_bytes > 0) {
    StrAppend(&memory, ", collective buffers ", FormatBytes(buffers.on_host_bytes), " (",
              FormatBytes(buffers.remote_bytes), " if memory is not shared)");
  }
  return StrCat("plan: ", plan.strategy, ", ", Counted(plan.num_microbatches, "micro-batch", "es"),
                ", ", Counted(plan.stages.size(), "stage"), ", schedule ", plan.policy, "\n      ",
                Counted(plan.devices.size(), "device"), " of ",
                Counted(plan.threads_per_device, "thread"), ", ", Counted(counts.actors, "actor"),
                ", ", Counted(counts.channels, "channel"), ", ",
                Counted(counts.collectives, "collective"), "\n      up to ", memory,
                ", predicted step ", FormatSeconds(plan.predicted_step_s), "\n");
}

std::string SummarizeJob(const JobGraph& job) {
  std::string text = StrCat("job:  ", job.graph.name(), ", ",
                            FormatCount(static_cast<double>(job.num_parameters)), " parameters\n");
  if (!job.note.empty()) StrAppend(&text, "      ", job.note, "\n");
  return text;
}

}  // namespace penstock::cli
