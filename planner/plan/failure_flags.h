// Which collectives tell the other members, beside their data, that a device has failed, where
// devices run collectives themselves (transport/stream_collective.h). That costs a run another
// exchange and copies of its own, so a collective does not if a later one of the same group in its
// phase does, before anything can happen with what a failed member gave.
//
// Until then, meaningless values may be computed from and kept for phases of the compute lane,
// which follow this phase and so that later collective. They may not get into a state, a result of
// the step, a collective of another group, or a phase of another lane.
//
// Example: F has collectives a, b and c of the same devices and, behind a kernel that reads the
// result of c, one that hands a value to a floating phase, which sends it. Only c tells.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_PLAN_FAILURE_FLAGS_H_
#define PENSTOCK_PLANNER_PLAN_FAILURE_FLAGS_H_

#include <vector>

#include "planner/plan/plan.h"

namespace penstock::planner {

// An entry for each of Plan::collectives. REQUIRES: CheckReferences and CheckStructure accept the
// plan.
std::vector<bool> CollectivesThatTellFailures(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_FAILURE_FLAGS_H_
