// The message of a plan file from a plan.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_PLAN_WRITE_PLAN_INTERNAL_H_
#define PENSTOCK_PLANNER_PLAN_WRITE_PLAN_INTERNAL_H_

#include "absl/status/status.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.capnp.h"
#include "planner/plan/plan.h"

namespace penstock::planner::internal {

// `folded`: what `plan` is the stored form of (StoredForm of folding_columns_internal.h); null for
// a plan whose devices are spelled out.
absl::Status WriteMessage(const Plan& plan, const FoldedPlan* folded, schema::Plan::Builder out);

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_PLAN_WRITE_PLAN_INTERNAL_H_
