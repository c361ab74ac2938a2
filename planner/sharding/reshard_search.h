// The search for the cheapest chain of redistribution steps: a shortest path over shardings.
//
// Forwards from the source, a state's successors are its slices, all_gathers, all_to_alls and
// reductions; backwards from the target, its predecessors by the same steps. A chain is a path that
// ends at the target, or two paths that a permute joins: one permute is enough, because it can
// bring axes into any order. Only axes that the target has are sliced or scattered into a
// dimension. Costs are those of plan_reshard.h.
//
// Thread rule: a pure function. The number of states is bounded: where it does not suffice, the
// answer may not be the cheapest.

#ifndef PENSTOCK_PLANNER_SHARDING_RESHARD_SEARCH_H_
#define PENSTOCK_PLANNER_SHARDING_RESHARD_SEARCH_H_

#include <vector>

#include "graph/sharding.h"
#include "planner/sharding/plan_reshard.h"

namespace penstock::planner {

// A chain that costs less than `bound`, or empty if none was found.
// REQUIRES: both shardings are in terms of the same pieces (axis_pieces.h), at most 32; `from` is
// partial over spatial axes only, and at most one of its reductions is to end.
std::vector<ReshardStep> SearchReshard(const graph::Mesh& mesh, const graph::Sharding& from,
                                       const graph::Sharding& to, double bound);

// What SearchReshard adds to the cost of a chain for each step, so that fewer are better, and for
// gathering micro-batches, which holds up what follows until the end of the step.
inline constexpr double kReshardStepCost = 1e-7;
inline constexpr double kGatherMicrobatchesCost = 16;

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_RESHARD_SEARCH_H_
