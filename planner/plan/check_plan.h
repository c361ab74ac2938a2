// The static rules of a plan: what can be said without running it.
//
// CheckReferences says that every index, size and shape leads somewhere, so that other code may
// follow them without looking; ReadPlan (plan_io.h) asks it of every file. CheckStructure says that
// the parts agree with each other, as plan.h defines them.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_CHECK_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_CHECK_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
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

// How often a step a phase runs.
inline uint32_t FiringsPerStep(const Plan& plan, const PhasePlan& phase) {
  return phase.per_microbatch ? plan.num_microbatches : 1;
}

// Tokens of a channel that stand for one slot of the register, where `tokens_per_step` pass through
// the channel: a register of a value made once a step is read M times before it is free. At
// least 1.
uint64_t TokensPerSlot(const Plan& plan, const RegisterPlan& reg, uint64_t tokens_per_step);

// Bytes of the device's memory where channel registers lie, which may share them.
uint64_t ChannelBytes(const DevicePlan& device);

// kInvalidArgument, naming what leads nowhere and where it may lead.
absl::Status CheckReferences(const Plan& plan);

// REQUIRES: CheckReferences(plan) is OK.
RendezvousTable FindRendezvous(const Plan& plan);

// kInvalidArgument, naming the device, actor or phase and what was expected. Checks phases and
// lanes, registers inside the arena, operands inside their register's slot, kernels' operands,
// channels' rates and registers, collectives and transfers against their actors, feeds, fetches and
// state. REQUIRES: CheckReferences(plan) is OK.
absl::Status CheckStructure(const Plan& plan);

// What of it concerns single devices, and the orders of stages. REQUIRES: likewise.
absl::Status CheckDevices(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_CHECK_PLAN_H_
