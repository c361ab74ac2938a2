// Predicted times of the phases of a plan on a machine: the sums of the times that kernels,
// collectives and messages take there by themselves, with copies to and from hosts beside them as
// the engine runs those (plan/fire_plan.h).
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SIMULATOR_PHASE_TIMES_H_
#define PENSTOCK_PLANNER_SIMULATOR_PHASE_TIMES_H_

#include "absl/status/status.h"

#include "graph/op.h"
#include "planner/plan/folded_plan.h"
#include "planner/search/machine.h"

namespace penstock::planner {

// Replaces PhasePlan::predicted_s. Those of a program are of the first device that runs it. Errors
// are those of PlanPeers. REQUIRES: the machine has a device for each of the plan's.
absl::Status PredictPhases(const graph::OpRegistry& ops, const Machine& machine, FoldedPlan* plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_PHASE_TIMES_H_
