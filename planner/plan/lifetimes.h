// When the bytes of a device's registers are in use, as far as its plan fixes that. Registers whose
// lifetimes never meet may share bytes.
//
// A step of a device is taken as one sequence of phases: those of the per-step lane on which the
// compute lane waits (*heads*), the compute lane in the order of its stage, and the rest of the
// per-step lane (*tails*). Lanes alone order the phases of each; steps and lanes may overlap. So a
// register is in use from its first access in this sequence until a phase starts that waits for its
// last: another lane's phase does so only by a channel. What no channel orders keeps its bytes for
// itself, and with an order that is not stored in the plan nothing crosses lanes or phases.
//
// Worked example: F stashes h for B, B makes the gradient g, and `update` reads g and writes w,
// which F reads, with one micro-batch:
//   F  |.h######|      h: from where F writes it to where B reads it last
//   B  |####hg##|      g: from where B writes it to where update reads it last
//   update |##g.|      The channel of w says that update is done when the next F starts.
// h and g share bytes. Without the channel from update to F, the next step's F could write h while
// update still reads g: g is then in use during F too, and the two keep apart.
//
// The first instance of a phase in a step is told from the others: sums over micro-batches begin in
// the first backward phase, where the activations of the first micro-batch end.
//
// Within a phase, time is the position of an actor in the planned order. Communication is in use
// from the position after the last kernel that it, or one like it earlier in the phase, waits for,
// until its first in-phase consumer starts.
//
// With several micro-batches, a slot of a register that only the compute lane uses is free between
// the micro-batches that have it: with k slots, each k-th, if k divides their number, so that every
// step deals the slots out alike. Any other register, and one of more than kMaxDealtOutSlots, is in
// use from its first micro-batch to its last.
//
// What floating phases touch is in use at all times, unless it comes to them by a channel and is
// passed on by another: gradients that are reduced between B and update. A floating phase of
// several actors runs between the phases that it waits for and those that wait for it, so what it
// touches is in use from the one to the other: gradients that are rounded and then reduced. A
// received value may arrive as soon as its slot is free.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_LIFETIMES_H_
#define PENSTOCK_PLANNER_PLAN_LIFETIMES_H_

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::planner {

// Each slot is compared with all other registers, which takes its time.
inline constexpr uint32_t kMaxDealtOutSlots = 16;

// Whether spans tell the first instance of the phase in a step from the others.
bool HasFirstInstance(const PhasePlan& phase, uint32_t num_microbatches);

// Positions of actors in instances of a phase of the device, both included.
struct PhaseSpan {
  uint32_t phase = 0;  // with num_phases added, the first instance of a phase that has one, else
                       // all instances, or all others
  int64_t first = 0;
  int64_t last = 0;
  bool is_touched = true;  // not only kept from a phase before it to one after it
  friend bool operator==(const PhaseSpan&, const PhaseSpan&) = default;
};

// When some bytes are in use.
struct Uses {
  bool always = false;
  // Unless always, from the first to the last access: one span for each PhaseSpan::phase at most,
  // in their order.
  std::vector<PhaseSpan> spans = {};
  // Phases, as in PhaseSpan, of another lane that may start before the last access: what they touch
  // keeps away. Two
  // registers that are both held in a phase are ordered by the lane that they come from, and so is
  // one that is kept there from that lane.
  std::vector<uint32_t> held = {};
};

struct DeviceUses {
  // Of each register: of each of its slots, or once, where all are in use alike. Of state: always.
  std::vector<std::vector<Uses>> registers;
  std::vector<Uses> scratch;  // of each actor with scratch, else empty
};

// `order` is that of the device's stage. REQUIRES: CheckReferences, and channels, phases and orders
// as CheckStructure wants them (check_structure.h). Offsets of registers are not looked at.
DeviceUses FindUses(const DevicePlan& device, const std::vector<PhaseChoice>& order,
                    uint32_t num_microbatches);

// Of each actor, the positions in its phase during which it may touch its operands: its own; of
// communication as above.
std::vector<PhaseSpan> FindActorSpans(const DevicePlan& device);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_LIFETIMES_H_
