// Whether the registers of a plan keep out of each other's way in their device's arena.
//
//   - Registers that overlap are never in use at once (lifetimes.h): channels order them. What a
//     plan does not order keeps its bytes for itself: state, received values, and with an order
//     that the policy decides as it goes, whatever crosses phases or lanes.
//   - A workspace register belongs to one phase. Within the phase, registers and kernel scratch
//     that live at the same time do not overlap. Time is the position in the planned order, which
//     other firing orders are made to agree with by channels (access_order.h): a kernel's
//     operands live while it runs. A collective or receive may start while kernels before it still
//     run, so what it writes lives from the position after the last kernel that it, or one like it
//     earlier in the phase, waits for. What a collective or send reads, and what a collective or
//     receive writes, lives until it is known to have completed, which is when the first of its
//     in-phase consumers starts, or else the end of the phase. The one exception is a kernel that
//     works in place: output 0 may begin where an input that dies with it begins.
//   - Nothing is read before it is there: a phase that reads a channel register has a channel from
//     a phase that writes it; within a phase, a value from communication is waited for, and
//     communication waits for the value it sends.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_CHECK_MEMORY_H_
#define PENSTOCK_PLANNER_PLAN_CHECK_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/plan/plan.h"

namespace penstock::planner {

// Most workspace bytes that live at once: of each device, of each of its phases.
using PhaseWorkspaceBytes = std::vector<std::vector<uint64_t>>;

// kInvalidArgument, naming the two that collide, their bytes and the actors that use them.
// REQUIRES: CheckReferences and CheckStructure accept the plan.
absl::StatusOr<PhaseWorkspaceBytes> CheckMemory(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_CHECK_MEMORY_H_
