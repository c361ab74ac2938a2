// A chain of redistribution steps by fixed rules: fast, seldom the worst, often the best. It bounds
// the search for the cheapest chain (reshard_search.h).
//
// The steps, each taken as long as it applies, in this order:
//   1. sums over temporal axes are accumulated, the others reduced: scattered where the target
//      splits a dimension next over just those axes, else all-reduced;
//   2. a dimension that is a prefix of its target is sliced further, where the axes are free;
//   3. an axis that another dimension wants next moves there (all_to_all);
//   4. if only the order of the axes differs, the tiles are permuted;
//   5. otherwise the minor-most axis that is in the way is gathered.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SHARDING_RESHARD_RULES_H_
#define PENSTOCK_PLANNER_SHARDING_RESHARD_RULES_H_

#include <vector>

#include "graph/sharding.h"
#include "planner/sharding/plan_reshard.h"

namespace penstock::planner {

// REQUIRES: both shardings are in terms of the same pieces (axis_pieces.h).
std::vector<ReshardStep> ReshardByRules(const graph::Mesh& mesh, const graph::Sharding& from,
                                        const graph::Sharding& to);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_RESHARD_RULES_H_
