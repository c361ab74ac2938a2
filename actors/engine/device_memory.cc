#include "actors/engine/device_memory.h"

#include <algorithm>
#include <vector>

#include "actors/engine/host_staging.h"
#include "actors/engine/link.h"
#include "base/format.h"
#include "base/strings.h"
#include "transport/collective.h"

namespace penstock::actors {

using planner::ActorKind;

DeviceMemory MemoryOf(const planner::Plan& plan, uint32_t device, const CanView& can_view,
                      bool is_synchronous) {
  const planner::DevicePlan& device_plan = plan.devices[device];
  DeviceMemory memory;
  memory.arena_bytes = device_plan.arena_bytes;
  memory.host_bytes = device_plan.host_bytes;
  std::vector<Comm> comms;
  std::vector<HostCopy> copies;
  for (uint32_t i = 0; i < device_plan.actors.size(); ++i) {
    const planner::ActorPlan& actor = device_plan.actors[i];
    if (actor.kind == ActorKind::kKernel || actor.kind == ActorKind::kCopy) continue;
    if (actor.kind == ActorKind::kCollective) {
      const CollectiveSpec& spec = plan.collectives[actor.target];
      const auto member = std::find(spec.devices.begin(), spec.devices.end(), device);
      std::vector<bool> views;
      for (const uint32_t other : spec.devices) {
        views.push_back(other == device || can_view == nullptr || can_view(device, other));
      }
      memory.collective_bytes += transport::CollectiveBufferBytes(
          spec, static_cast<int>(member - spec.devices.begin()), views);
    }
    if (is_synchronous) continue;
    if (actor.kind == ActorKind::kFeed || actor.kind == ActorKind::kFetch) {
      copies.push_back(DescribeHostCopy(plan, device, i));
    } else {
      comms.push_back(DescribeComm(plan, device, i));
    }
  }
  if (!is_synchronous) memory.staging_bytes = HostStaging::BytesFor(comms, copies);
  return memory;
}

std::string ToString(const DeviceMemory& memory) {
  std::string text = FormatBytes(memory.total());
  if (memory.total() == memory.arena_bytes) return text;
  StrAppend(&text, " (arena ", FormatBytes(memory.arena_bytes));
  if (memory.host_bytes > 0) StrAppend(&text, ", on host ", FormatBytes(memory.host_bytes));
  if (memory.collective_bytes > 0) {
    StrAppend(&text, ", collective buffers ", FormatBytes(memory.collective_bytes));
  }
  if (memory.staging_bytes > 0) {
    StrAppend(&text, ", host staging ", FormatBytes(memory.staging_bytes));
  }
  return text + ")";
}

}  // namespace penstock::actors
