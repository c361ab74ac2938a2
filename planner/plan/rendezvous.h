// Which actors of a plan meet: the members of a collective, and both ends of a transfer.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_RENDEZVOUS_H_
#define PENSTOCK_PLANNER_PLAN_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "planner/plan/plan.h"

namespace penstock::planner {

struct ActorRef {
  uint32_t device = 0;
  uint32_t actor = 0;
  friend bool operator==(const ActorRef&, const ActorRef&) = default;
};

// The actors that meet: rendezvous m < Plan::collectives.size() is collective m, the others are the
// transfers in order. Actors of one rendezvous are in increasing order of device.
struct RendezvousTable {
  std::vector<uint32_t> ends;  // of rendezvous m: actors[ends[m - 1]] .. actors[ends[m] - 1]
  std::vector<ActorRef> actors;

  size_t size() const { return ends.size(); }
  uint32_t begin(size_t rendezvous) const { return rendezvous == 0 ? 0 : ends[rendezvous - 1]; }
  absl::Span<const ActorRef> Of(size_t rendezvous) const {
    return absl::MakeConstSpan(actors).subspan(begin(rendezvous),
                                               ends[rendezvous] - begin(rendezvous));
  }
};

// The rendezvous of a collective, send or receive; kNone for other actors.
inline uint32_t RendezvousOf(const Plan& plan, const ActorPlan& actor) {
  if (!IsCommunication(actor.kind)) return kNone;
  if (actor.kind == ActorKind::kCollective) return actor.target;
  return static_cast<uint32_t>(plan.collectives.size()) + actor.target;
}

// REQUIRES: CheckReferences(plan) is OK (check_references.h).
RendezvousTable FindRendezvous(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_RENDEZVOUS_H_
