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

namespace penstock::planner {

absl::Status LowerReshards(const graph::OpRegistry& ops, graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_LOWER_RESHARDS_H_
