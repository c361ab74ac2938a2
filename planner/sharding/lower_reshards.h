// Pass lower-reshards: replaces every `reshard` by a chain of local_slice, all_gather, all_to_all,
// permute, all_reduce, reduce_scatter, halo_exchange, and accumulate and gather_microbatches over
// temporal axes.
//
// Every chain is the cheapest that PlanReshard finds (plan_reshard.h).

#ifndef PENSTOCK_PLANNER_SHARDING_LOWER_RESHARDS_H_
#define PENSTOCK_PLANNER_SHARDING_LOWER_RESHARDS_H_

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"
#include "planner/sharding/reshard_cache.h"

namespace penstock::planner {

// `caches` keeps the chains that are planned, for other graphs; null: they are forgotten.
absl::Status LowerReshards(const graph::OpRegistry& ops, graph::Graph& graph,
                           ReshardCaches* caches = nullptr);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_LOWER_RESHARDS_H_
