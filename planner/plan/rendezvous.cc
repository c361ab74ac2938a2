#include "planner/plan/rendezvous.h"

#include <numeric>

namespace penstock::planner {

RendezvousTable FindRendezvous(const Plan& plan) {
  RendezvousTable rendezvous_table;
  std::vector<uint32_t> next(plan.collectives.size() + plan.transfers.size() + 1, 0);
  for (const DevicePlan& device : plan.devices) {
    for (const ActorPlan& actor : device.actors) {
      const uint32_t rendezvous = RendezvousOf(plan, actor);
      if (rendezvous != kNone) ++next[rendezvous + 1];
    }
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  rendezvous_table.ends.assign(next.begin() + 1, next.end());
  rendezvous_table.actors.resize(next.back());
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    for (uint32_t a = 0; a < plan.devices[d].actors.size(); ++a) {
      const uint32_t rendezvous = RendezvousOf(plan, plan.devices[d].actors[a]);
      if (rendezvous != kNone) rendezvous_table.actors[next[rendezvous]++] = {d, a};
    }
  }
  return rendezvous_table;
}

}  // namespace penstock::planner
