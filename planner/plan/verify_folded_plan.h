// Verifies a plan by its programs, so that the time it takes does not depend on how many devices
// share them.
//
// Each program is checked as VerifyPlan (verify_plan.h) checks a device: structure, memory, order
// of accesses and of collectives. Its collectives and transfers are checked against every group
// that one of its devices is in. The programs are then fired together, as if all devices of a stage
// took part in each collective at once. That forbids more than the devices do, which wait for their
// own groups only: what does not deadlock so does not deadlock at all. If it does
// (kFailedPrecondition), VerifyPlan decides on the plan of all devices. Channel numbers, tiles of
// states and counts of fetches are checked when a plan has been expanded.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_PLAN_VERIFY_FOLDED_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_VERIFY_FOLDED_PLAN_H_

#include "absl/status/statusor.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/verify_plan.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// The result is of programs, not of devices. Errors are those of VerifyPlan; where they name a
// device, it is the number of a program. REQUIRES: the plan is one that lowering made; one that was
// read from a file is expanded and verified as a whole.
absl::StatusOr<PlanVerification> VerifyFoldedPlan(const FoldedPlan& folded,
                                                  const PolicyRegistry& policies);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_VERIFY_FOLDED_PLAN_H_
