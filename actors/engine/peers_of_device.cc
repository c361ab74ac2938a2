#include "actors/engine/peers_of_device.h"

#include <set>

#include "absl/container/flat_hash_set.h"

#include "actors/engine/stage_exchange.h"
#include "transport/collective.h"

namespace penstock::actors {

std::vector<uint32_t> PeersOfDevice(const planner::Plan& plan, uint32_t device) {
  std::set<uint32_t> peers;
  absl::flat_hash_set<uint32_t> collectives;
  for (const planner::ActorPlan& actor : plan.devices[device].actors) {
    switch (actor.kind) {
      case planner::ActorKind::kSend:
        peers.insert(plan.transfers[actor.target].destination);
        break;
      case planner::ActorKind::kRecv:
        peers.insert(plan.transfers[actor.target].source);
        break;
      case planner::ActorKind::kCollective:
        if (collectives.insert(actor.target).second) {
          const std::vector<uint32_t> more =
              transport::CollectivePeers(plan.collectives[actor.target], device);
          peers.insert(more.begin(), more.end());
        }
        break;
      default:
        break;
    }
  }
  const std::vector<uint32_t> of_stage = StagePeersOf(plan, device);
  peers.insert(of_stage.begin(), of_stage.end());
  return {peers.begin(), peers.end()};
}

}  // namespace penstock::actors
