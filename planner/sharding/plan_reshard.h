// The chain of redistribution steps between two shardings of a tensor that moves the fewest bytes.
//
// Every step is one local copy or collective: local_slice, all_gather, all_to_all, permute,
// all_reduce, reduce_scatter, and accumulate and gather_microbatches over temporal axes. Every pair
// of shardings is reachable. A sharding with windows (graph/window.h) is only a target: a
// halo_exchange a dimension leads to it (halo.h).
//
// Cost. A step costs what a device receives over links, as a fraction of the whole tensor, over all
// micro-batches. With t the tile of a device before the step and n the devices of a group: a slice
// nothing, all_gather (n-1) t, all_to_all and reduce_scatter (n-1)/n t, all_reduce 2 (n-1)/n t,
// permute t. What a halo_exchange moves depends on the extents (HaloBytes) and is left out. Of
// chains of equal cost, the one with fewest steps is taken.
//
// Worked example. On [x=4, y=2] from @[x, y] to @[y, x], a tile is 1/8. By a permute to
// @[y.x:(2)2, x:(1)2] and an all_to_all of x:(2)2, this costs 1/8 + 1/2 * 1/8 = 0.1875. Gathering
// x, moving y and slicing x would cost 3/8 + 1/2 * 1/2 = 0.625.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_PLAN_RESHARD_H_
#define PENSTOCK_PLANNER_SHARDING_PLAN_RESHARD_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "graph/sharding.h"

namespace penstock::planner {

// One step of a chain: the operator and the sharding it leads to.
struct ReshardStep {
  std::string op;            // its name, such as "all_gather"
  graph::Sharding sharding;  // of the value after the step
  friend bool operator==(const ReshardStep&, const ReshardStep&) = default;
};

// The chain between two closed shardings of a tensor; empty when they are equal. The shardings in
// steps are canonical. REQUIRES: dimensions that `from` holds in windows are the same in `to`.
std::vector<ReshardStep> PlanReshard(const graph::Mesh& mesh, const graph::Sharding& from,
                                     const graph::Sharding& to);

// The cost of a chain that begins with `from`.
double ReshardCost(const graph::Mesh& mesh, const graph::Sharding& from,
                   absl::Span<const ReshardStep> steps);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_PLAN_RESHARD_H_
