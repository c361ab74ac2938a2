// Whether every index, size and shape of a plan leads somewhere, so that other code may follow them
// without looking. ReadPlan (plan_io.h) asks it of every file.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_CHECK_REFERENCES_H_
#define PENSTOCK_PLANNER_PLAN_CHECK_REFERENCES_H_

#include "absl/status/status.h"

#include "planner/plan/plan.h"

namespace penstock::planner {

// kInvalidArgument, naming what leads nowhere and where it may lead.
absl::Status CheckReferences(const Plan& plan);

// Of a tile alone: shapes that fit, all of one rank. Does not say whose the tile is.
absl::Status CheckTileShapes(const TilePlan& tile);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_CHECK_REFERENCES_H_
