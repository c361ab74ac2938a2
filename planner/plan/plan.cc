#include "planner/plan/plan.h"

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
