// Pass decompose: rewrites operators whose kernel needs a factor whole into operators that do not,
// where propagation has split that factor. Cross-entropy over a vocabulary split by tensor
// parallelism becomes a maximum, a sum of exponentials and a pick, each reduced over the axis, and
// the logits are never gathered; attention over split keys becomes attention on each part, merged
// by their sums of exponentials; attention whose queries and keys one axis splits becomes ring
// attention (graph/ops/block_attention.cc). An operator without a decomposition is left:
// insert-reshards gathers its operand.
//
// REQUIRES: shardings propagated. New values have shardings propagated to them.

#ifndef PENSTOCK_PLANNER_SHARDING_DECOMPOSE_H_
#define PENSTOCK_PLANNER_SHARDING_DECOMPOSE_H_

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

absl::Status DecomposeSplitFactors(const graph::OpRegistry& ops, graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_DECOMPOSE_H_
