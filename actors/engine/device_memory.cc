#include "actors/engine/device_memory.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"

#include "actors/engine/host_staging.h"
#include "actors/engine/link.h"
#include "base/format.h"
#include "base/strings.h"
#include "transport/collective.h"

namespace penstock::actors {
namespace {

// Equal but for their channels: collectives of repeated layers.
struct EqualWork {
  bool operator()(const CollectiveSpec* a, const CollectiveSpec* b) const {
    CollectiveSpec copy = *a;
    copy.channel = b->channel;
    return copy == *b;
  }
};

struct HashWork {
  size_t operator()(const CollectiveSpec* spec) const {
    return absl::HashOf(spec->kind, spec->dtype, spec->devices, spec->counts, spec->tensors);
  }
};

uint64_t BufferBytes(const CollectiveSpec& spec, uint32_t device, const CanView& can_view) {
  const auto member = std::find(spec.devices.begin(), spec.devices.end(), device);
  std::vector<bool> views;
  for (const uint32_t other : spec.devices) {
    views.push_back(other == device || can_view == nullptr || can_view(device, other));
  }
  return transport::CollectiveBufferBytes(spec, static_cast<int>(member - spec.devices.begin()),
                                          views);
}

}  // namespace

using planner::ActorKind;

DeviceMemory MemoryOf(const planner::Plan& plan, uint32_t device, const CanView& can_view,
                      bool is_synchronous) {
  const planner::DevicePlan& device_plan = plan.devices[device];
  DeviceMemory memory;
  memory.arena_bytes = device_plan.arena_bytes;
  memory.host_bytes = device_plan.host_bytes;
  absl::flat_hash_map<const CollectiveSpec*, uint64_t, HashWork, EqualWork> buffer_bytes;
  std::vector<Comm> comms;
  std::vector<HostCopy> copies;
  for (uint32_t i = 0; i < device_plan.actors.size(); ++i) {
    const planner::ActorPlan& actor = device_plan.actors[i];
    if (actor.kind == ActorKind::kKernel || actor.kind == ActorKind::kCopy) continue;
    if (actor.kind == ActorKind::kCollective) {
      const CollectiveSpec& spec = plan.collectives[actor.target];
      const auto [known, is_new] = buffer_bytes.try_emplace(&spec, 0);
      if (is_new) known->second = BufferBytes(spec, device, can_view);
      memory.collective_bytes += known->second;
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
