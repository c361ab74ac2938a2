// Reads plan files that are to be run or simulated.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_VERIFIED_PLAN_H_
#define PENSTOCK_CLI_VERIFIED_PLAN_H_

#include <string>

#include "absl/status/statusor.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::cli {

// The plan of the file, which VerifyPlan (planner/plan/verify_plan.h) has accepted: what was read
// is trusted no more than that. Errors name the file, then what is wrong and where.
absl::StatusOr<planner::Plan> ReadVerifiedPlan(const std::string& file,
                                               const planner::PolicyRegistry& policies);

// The same, for readers that need few of its devices: a plan that is too large to be expanded
// (planner/plan/check_folded_plan.h) stays folded, and VerifyFoldedPlan has accepted its programs.
absl::StatusOr<planner::FoldedPlan> ReadVerifiedFoldedPlan(const std::string& file,
                                                           const planner::PolicyRegistry& policies);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_VERIFIED_PLAN_H_
