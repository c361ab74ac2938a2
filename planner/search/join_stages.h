// Larger stages from small ones.
//
// Stages can be joined, so that the work of small stages tells that of larger ones, and
// repeated (see repeated_layers.h). A joined stage has the sum of the work of its parts, and the
// largest of their workspaces.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_JOIN_STAGES_H_
#define PENSTOCK_PLANNER_SEARCH_JOIN_STAGES_H_

#include "absl/types/span.h"

#include "planner/search/stage_work.h"

namespace penstock::planner {

// Joins the stages [starts[i], starts[i + 1]) into one. REQUIRES: starts begin with 0, increase and
// are stages.
ModelWork Join(const ModelWork& work, absl::Span<const int> starts);

// The same where groups differ: a stage of the result is timed by the works[g] of its group g,
// which is `work` on the devices of that group. REQUIRES: `works` differ in seconds alone.
ModelWork JoinOnGroups(absl::Span<const ModelWork* const> works, absl::Span<const int> starts,
                       Placement placement = Placement::kLoop);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_JOIN_STAGES_H_
