#include "planner/plan/plan.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace penstock::planner {

std::string_view Name(ActorKind kind) {
  switch (kind) {
    case ActorKind::kKernel:
      return "kernel";
    case ActorKind::kFeed:
      return "feed";
    case ActorKind::kFetch:
      return "fetch";
    case ActorKind::kCollective:
      return "collective";
    case ActorKind::kSend:
      return "send";
    case ActorKind::kRecv:
      return "recv";
    case ActorKind::kCopy:
      return "copy";
  }
  return "unknown";
}

std::vector<uint32_t> PreviousOfGroups(const Plan& plan, uint32_t device) {
  const DevicePlan& actors_of = plan.devices[device];
  std::vector<uint32_t> previous(actors_of.actors.size(), kNone);
  absl::flat_hash_map<std::vector<uint32_t>, uint32_t> last;  // of each group
  for (const PhasePlan& phase : actors_of.phases) {
    last.clear();
    for (uint32_t i = phase.first_actor; i < phase.first_actor + phase.num_actors; ++i) {
      const ActorPlan& actor = actors_of.actors[i];
      if (actor.kind != ActorKind::kCollective) continue;
      const auto [it, is_first] = last.try_emplace(plan.collectives[actor.target].devices, i);
      if (!is_first) previous[i] = std::exchange(it->second, i);
    }
  }
  return previous;
}

uint64_t TokensPerSlot(const Plan& plan, const RegisterPlan& reg, uint64_t tokens_per_step) {
  const bool is_refilled = reg.per_microbatch && reg.register_class == RegisterClass::kChannel;
  return std::max<uint64_t>(tokens_per_step / (is_refilled ? plan.num_microbatches : 1), 1);
}

uint64_t ChannelBytes(const DevicePlan& device) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const RegisterPlan& reg : device.registers) {
    if (reg.register_class != RegisterClass::kChannel || IsOnHost(device, reg)) continue;
    ranges.emplace_back(reg.offset, reg.offset + reg.slots * reg.slot_bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t bytes = 0;
  uint64_t end = 0;  // of those so far
  for (const auto& [range_begin, range_end] : ranges) {
    if (range_end <= end) continue;
    bytes += range_end - std::max(range_begin, end);
    end = range_end;
  }
  return bytes;
}

PlanCounts Count(const Plan& plan) {
  PlanCounts counts;
  for (const DevicePlan& device : plan.devices) {
    counts.actors += device.actors.size();
    counts.channels += device.channels.size();
  }
  counts.channels += plan.transfers.size();
  counts.collectives = plan.collectives.size();
  return counts;
}

}  // namespace penstock::planner
