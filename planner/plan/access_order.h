// The order that memory imposes on the actors of a phase.
//
// Within a phase, actors fire in any order that its in-phase channels allow (plan.h). That gives
// the results of the planned order if every two actors that touch the same bytes, at least one of
// them writing, are joined by a path of in-phase channels. Values are: their consumers have a
// channel from their producer. Reused bytes are not, so lowering adds ordering channels, which
// carry no value: from the actors that used the bytes before to the one that writes them next.
//
// The same holds for channels between phases, which stand for all actors of their phase that use
// the register: those are to come before the producer that puts the token, or the consumer that
// gives the credit back, unless they have a channel of their own.
//
// Kernel scratch needs no order among kernels: those of a lane run one after another on its stream.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_ACCESS_ORDER_H_
#define PENSTOCK_PLANNER_PLAN_ACCESS_ORDER_H_

#include <vector>

#include "absl/status/status.h"

#include "planner/plan/plan.h"

namespace penstock::planner {

// Adds, at the end of the device's channels, the in-phase channels that those between phases need.
// Needs no places of registers.
void AddTokenOrders(DevicePlan* device);

// Adds these and the channels that bytes need which are used again.
// REQUIRES: registers and scratch have their places; no two actors' operands overlap where the
// planned order would not allow it.
void AddOrderChannels(const std::vector<KernelPlan>& kernels, DevicePlan* device);

// kInvalidArgument names two actors that touch the same bytes and that nothing orders, or whose
// order follows from so many channels that it is not looked for.
// REQUIRES: CheckReferences and CheckStructure accept the plan.
absl::Status CheckAccessOrder(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_ACCESS_ORDER_H_
