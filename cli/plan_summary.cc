#include "cli/plan_summary.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cli/device_list.h"
#include "cli/job_machine.h"
#include "cli/progress.h"

#include "actors/engine/check_plan.h"
#include "actors/engine/device_memory.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {

namespace {

CollectiveBuffers PeakCollectiveBuffers(const planner::Plan& plan,
                                        absl::Span<const uint32_t> devices) {
  CollectiveBuffers peak;
  for (const uint32_t d : devices) {
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

// `plan`: what is not of single devices, and their arenas.
std::string Summarize(const planner::Plan& plan, std::string_view devices,
                      const planner::PlanCounts& counts, const CollectiveBuffers& buffers,
                      const CheckpointCopies& copies) {
  const auto copied = [](const std::vector<uint64_t>& bytes, size_t d) {
    return d < bytes.size() ? bytes[d] : 0;
  };
  uint64_t peak = 0;
  uint64_t host_peak = 0;
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const planner::DevicePlan& device = plan.devices[d];
    peak = std::max(peak, device.arena_bytes + copied(copies.device_bytes, d));
    host_peak = std::max(host_peak, device.host_bytes + copied(copies.host_bytes, d));
  }
  std::string memory = StrCat(FormatBytes(peak), " a device");
  if (host_peak > 0) StrAppend(&memory, ", ", FormatBytes(host_peak), " on its host");
  if (buffers.remote_bytes > 0) {
    StrAppend(&memory, ", collective buffers ", FormatBytes(buffers.on_host_bytes), " (",
              FormatBytes(buffers.remote_bytes), " if memory is not shared)");
  }
  return StrCat("plan: ", plan.strategy, ", ", Counted(plan.num_microbatches, "micro-batch", "es"),
                ", ", Counted(plan.stages.size(), "stage"), ", schedule ", plan.policy, "\n      ",
                devices, ", ", Counted(counts.actors, "actor"), ", ",
                Counted(counts.channels, "channel"), ", ",
                Counted(counts.collectives, "collective"), "\n      up to ", memory,
                ", predicted step ", FormatSeconds(plan.predicted_step_s), "\n");
}

}  // namespace

CollectiveBuffers PeakCollectiveBuffers(const planner::Plan& plan) {
  if (!actors::CheckPlan(plan).ok()) return {};  // it will be refused
  std::vector<uint32_t> devices(plan.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  return PeakCollectiveBuffers(plan, devices);
}

std::string DescribeDevices(const Job& job, int64_t num_devices, int64_t threads) {
  if (!job.cluster.file.empty()) {
    const absl::StatusOr<planner::Machine> machine = MachineOf(job, num_devices);
    std::vector<std::string> kinds;
    for (int64_t device = 0; machine.ok() && device < num_devices; ++device) {
      const std::string& kind = machine->cluster.KindOf(device).name;
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
    return StrCat(Counted(num_devices, "device"),
                  kinds.empty() ? "" : StrCat(" (", StrJoin(kinds, ", "), ")"));
  }
  const DeviceList devices = DeviceListOf(job, num_devices).value_or(DeviceList());
  const int64_t num_gpus = devices.Count("cuda", 0, num_devices);
  std::vector<std::string> parts;
  if (num_gpus < num_devices) {
    parts.push_back(
        StrCat(Counted(num_devices - num_gpus, "device"), " of ", Counted(threads, "thread")));
  }
  if (num_gpus > 0) parts.push_back(Counted(num_gpus, "GPU"));
  return StrJoin(parts, " and ");
}

std::string SummarizePlan(const planner::Plan& plan, std::string_view devices,
                          const CheckpointCopies& copies) {
  return Summarize(plan, devices, planner::Count(plan), PeakCollectiveBuffers(plan), copies);
}

absl::StatusOr<std::string> SummarizePlan(const planner::FoldedPlan& plan, std::string_view devices,
                                          const CheckpointCopies& copies) {
  const std::vector<uint32_t> firsts = planner::FirstOfPrograms(plan);
  ASSIGN_OR_RETURN(const planner::Plan some, planner::ExpandDevices(plan, firsts));
  return Summarize(some, devices, planner::Count(plan), PeakCollectiveBuffers(some, firsts),
                   copies);
}

std::string SummarizeJob(const JobGraph& job) {
  std::string text =
      StrCat("job:  ", job.graph.name(), ", ", FormatParameters(job.num_parameters), "\n");
  if (!job.note.empty()) StrAppend(&text, "      ", job.note, "\n");
  return text;
}

}  // namespace penstock::cli
