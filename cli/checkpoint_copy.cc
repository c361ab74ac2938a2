#include "cli/checkpoint_copy.h"

#include <algorithm>
#include <vector>

#include "cli/host_layout.h"

#include "actors/cluster/device_range.h"
#include "actors/session/kept_tiles.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::cli {

uint64_t CheckpointCopyBytes(const Job& job, const planner::Plan& plan, uint32_t first,
                             uint32_t count) {
  if (job.checkpoint.path.empty()) return 0;
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  const int64_t num_processes = std::min(job.cluster.processes, num_devices);
  const std::vector<uint32_t> devices =
      ProcessDevicesOf(job, num_processes).value_or(std::vector<uint32_t>());
  uint64_t num_bytes = 0;
  for (int64_t rank = 0; rank < num_processes; ++rank) {
    const actors::DeviceRange range =
        actors::DevicesOfRank(rank, num_processes, num_devices, devices);
    if (range.first - first >= count) continue;
    num_bytes += actors::KeptTiles::BytesOfAll(plan, range.first, range.count);
  }
  return num_bytes;
}

std::string CheckpointCopyNote(const Job& job, const planner::Plan& plan) {
  if (job.checkpoint.path.empty()) return "";
  return StrCat("      ", FormatBytes(CheckpointCopyBytes(job, plan)),
                " for the copies of states that go into checkpoints\n");
}

}  // namespace penstock::cli
