// Verifies a plan by its programs, so that the time it takes does not depend on how many devices
// share them.
//
// Programs are checked as VerifyPlan (verify_plan.h) checks devices. Where the devices of a stage
// meet in groups, each program is checked against the sizes of every group that has one of its
// devices, and all programs of the stage are taken to meet at once. That is stricter: if the
// programs then cannot deadlock, neither can the devices, which only wait for their own group. If
// it fails, the plan of all devices decides.
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
// device, it is the number of a program.
absl::StatusOr<PlanVerification> VerifyFoldedPlan(const FoldedPlan& folded,
                                                  const PolicyRegistry& policies);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_VERIFY_FOLDED_PLAN_H_
