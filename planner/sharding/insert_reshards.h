// Pass insert-reshards: makes every redistribution explicit. Afterwards each node runs locally: its
// operands have the shardings that its operator needs (execution_sharding.h), its results those
// that its kernel leaves, and wherever that is not what the value or its reader asks for, a
// `reshard` node stands between. Partial values are reduced where they arise, except that a sum
// passes through linear operators whose other terms are partial in the same way (two gradients are
// added first and reduced once). Over a temporal axis it is accumulated at once, unless the value
// is asked for as partial(sum, mb): then each micro-batch reduces its own terms over devices, and
// their results are accumulated.
//
// A parameter or state is never split over a temporal axis: it is held as the axes before the first
// temporal one say, and each micro-batch slices what it reads. A parameter with the
// attribute per_use that its readers need less split is made so once in each phase that reads it
// (attribute per_use of the reshard), so that nothing is kept between phases.
//
// An operand of which its operator reads windows (graph/window.h) is redistributed to hold them,
// unless every device has all that its window needs.
//
// Where stages have different numbers of devices, a value that a stage reads from another mesh
// comes from a `receive`: one for each value, stage and sharding in which it arrives (arrival.h).
// Sums and windows do not cross. A leaf is made again on each mesh (leaf_copy.h).
//
// REQUIRES: shardings propagated.

#ifndef PENSTOCK_PLANNER_SHARDING_INSERT_RESHARDS_H_
#define PENSTOCK_PLANNER_SHARDING_INSERT_RESHARDS_H_

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"
#include "planner/sharding/reshard_cache.h"

namespace penstock::planner {

// `caches` keeps the chains that are planned, for other graphs; null: they are forgotten.
absl::Status InsertReshards(const graph::OpRegistry& ops, graph::Graph& graph,
                            ReshardCaches* caches = nullptr);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_INSERT_RESHARDS_H_
