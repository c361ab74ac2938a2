// Whether the parts of a plan agree with each other, as plan.h defines them: what can be said
// without running it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_CHECK_STRUCTURE_H_
#define PENSTOCK_PLANNER_PLAN_CHECK_STRUCTURE_H_

#include "absl/status/status.h"

#include "planner/plan/plan.h"

namespace penstock::planner {

// kInvalidArgument, naming the device, actor or phase and what was expected. Checks phases and
// lanes, registers inside the arena, operands inside their register's slot, kernels' operands,
// channels' rates and registers, collectives and transfers against their actors, feeds, fetches and
// state. REQUIRES: CheckReferences(plan) is OK.
absl::Status CheckStructure(const Plan& plan);

// What of it concerns single devices, and the orders of stages. REQUIRES: likewise.
absl::Status CheckDevices(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_CHECK_STRUCTURE_H_
