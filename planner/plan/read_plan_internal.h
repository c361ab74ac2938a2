// A plan from the message of a plan file. Trusts nothing; does not ask whether indices lead
// anywhere (CheckReferences).
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_PLAN_READ_PLAN_INTERNAL_H_
#define PENSTOCK_PLANNER_PLAN_READ_PLAN_INTERNAL_H_

#include <optional>

#include "absl/status/status.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.capnp.h"
#include "planner/plan/plan.h"

namespace penstock::planner::internal {

// Where the message holds a folded plan, that is set, and `plan` is not to be used. kDataLoss says
// which table is malformed. Cap'n Proto's exceptions pass through.
absl::Status ReadMessage(schema::Plan::Reader in, Plan* plan, std::optional<FoldedPlan>* folded);

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_PLAN_READ_PLAN_INTERNAL_H_
