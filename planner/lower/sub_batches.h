// Splits a device's part of a micro-batch into sub-batches, so that communication for one of them
// passes while the device computes with another: the all_reduce of tensor parallelism, and what
// sequence parallelism scatters and gathers (the idea: Wang et al., "Domino: Eliminating
// Communication in LLM Training via Generic Tensor Slicing and Overlapping", 2024).
//
// Inputs say by the attribute `sub_batches` that their first dimension is a batch, and how many
// parts it is to have. By sharding rules, each value has a dimension that follows the batch, or
// none. A node that only passes this factor on is cloned for each sub-batch, if a path of such
// nodes in its phase joins it to a collective of some size. All others, like sums over the batch
// that are gradients of weights, stay whole. Sub-batches lie side by side in the tile of the whole
// value, so nothing is copied between the two, but for what collectives read or write:
//   join_sub_batches   the whole, for nodes that stay so
//   local_slice        a sub-batch of a whole value
//
// Example: the two halves of a layer's matmul over tp, of its all_reduce and of what follows:
//
//   %p = matmul(%x, %w) : f32[8, 64] @[_, _] partial(sum, tp)
//   %r = all_reduce(%p) : f32[8, 64] @[_, _]
//   %y = gelu(%r)       : f32[8, 64] @[_, _]
//
//   %p.sub0 = matmul(%x.sub0, %w) : f32[8, 64] @[_ subbatch(of=2, index=0), _] partial(sum, tp)
//   %r.sub0 = all_reduce(%p.sub0) : f32[8, 64] @[_ subbatch(of=2, index=0), _]
//   %p.sub1 = matmul(%x.sub1, %w) ...    while %r.sub0 is reduced
//   %r.sub1 = all_reduce(%p.sub1)
//   %y.sub0 = gelu(%r.sub0) ...          while %r.sub1 is reduced
//
// Nodes of a phase are ordered by *segments*: what lies between one collective of a sub-batch and
// the next. Those of the first sub-batch come first in each, those of the others follow, then what
// stays whole. Gradients of weights come a segment later than they could: they run while nothing
// else can.
//
// Types stay those of the whole values, so random operators draw what they would have drawn.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_LOWER_SUB_BATCHES_H_
#define PENSTOCK_PLANNER_LOWER_SUB_BATCHES_H_

#include <cstdint>

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

// Whether the node is a local_slice that takes a sub-batch of a whole value.
bool TakesSubBatch(const graph::Graph& graph, const graph::Node& node);

// The latency of a collective of less would count several times.
inline constexpr int64_t kLeastSubBatchBytes = 4096;

// No change where no input has the attribute, where no collective has `least_bytes` for each
// sub-batch, or where a phase would read a part of what is made once a step. REQUIRES: reshards
// lowered.
absl::Status SplitIntoSubBatches(const graph::OpRegistry& ops, int64_t least_bytes,
                                 graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_SUB_BATCHES_H_
