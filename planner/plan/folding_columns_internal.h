// Folded plans in plan files: a plan with a device for each program, and the table Folding
// (plan.capnp) for the rest.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_FOLDING_COLUMNS_INTERNAL_H_
#define PENSTOCK_PLANNER_PLAN_FOLDING_COLUMNS_INTERNAL_H_

#include "absl/status/statusor.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.capnp.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_columns_internal.h"

namespace penstock::planner::internal {

// What the other tables of the file hold.
Plan StoredForm(const FoldedPlan& folded);

void WriteFolding(const FoldedPlan& folded, StringWriter* strings, schema::Folding::Builder out);

// `stored`: what was read from the other tables. kDataLoss: malformed. Does not ask whether indices
// lead anywhere (CheckFoldedReferences).
absl::StatusOr<FoldedPlan> ReadFolding(schema::Folding::Reader in, const StringReader& strings,
                                       Plan stored);

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_PLAN_FOLDING_COLUMNS_INTERNAL_H_
