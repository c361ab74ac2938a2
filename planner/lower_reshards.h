// Pass lower-reshards: replaces every `reshard` by a chain of local_slice, all_gather, all_to_all,
// permute, all_reduce, reduce_scatter, and accumulate and gather_microbatches over temporal axes.
// Every pair of shardings is reachable.
//
// Worked example. On [x=2, y=2], f32[8, 8] from @[_, _] partial(sum, y) to @[y, _] is one
// reduce_scatter over y on dimension 0; from @[x, _] to @[_, x] one all_to_all of x from dimension
// 0 to dimension 1.
//
// The steps, each taken as long as it applies, in this order:
//   1. sums over temporal axes are accumulated, the others reduced: scattered where the target
//      splits a dimension next over just those axes, else all-reduced;
//   2. a dimension that is a prefix of its target is sliced further, where the axes are free;
//   3. an axis that another dimension wants next moves there (all_to_all);
//   4. if only the order of the axes differs, the tiles are permuted;
//   5. otherwise the minor-most axis that is in the way is gathered.

#ifndef PENSTOCK_PLANNER_LOWER_RESHARDS_H_
#define PENSTOCK_PLANNER_LOWER_RESHARDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"
#include "graph/sharding.h"

namespace penstock::planner {

absl::Status LowerReshards(const graph::OpRegistry& ops, graph::Graph& graph);

// One step of a chain: the operator and the sharding it leads to.
struct ReshardStep {
  std::string op;
  graph::Sharding sharding;
  friend bool operator==(const ReshardStep&, const ReshardStep&) = default;
};

// The chain between two closed shardings of a tensor; empty when they are equal. The shardings
// given in steps are in terms of the pieces of axes that both ends distinguish, canonicalised.
std::vector<ReshardStep> PlanReshard(const graph::Mesh& mesh, const graph::Sharding& from,
                                     const graph::Sharding& to);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_RESHARDS_H_
