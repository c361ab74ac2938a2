// Which collectives of a phase run as one: gradients that are scattered for the update, and updated
// parameters that are gathered for the next step. One collective of several tensors
// (base/collective.h) takes the latency of one, and copies none of them.
//
// A collective may be put together with others if nothing in its phase waits for the result, sums
// over micro-batches apart. Collectives of the same kind and groups join in the order of the phase
// while their tensors take no more than the bytes of a bucket, and, if they are scattered, no more
// than an eighth of all that the phase scatters: while a bucket fills, the link waits. The last one
// of a phase runs by itself, since nothing hides it: what comes before it does not wait for it.
//
// Worked example, buckets of 4 MB: an update gathers parameters a, b, c, d of 2 MB each, in this
// order. Those of a and b start together when b has been updated, c and d each by itself.
//
// Parameters that are gathered per use are put together by prefetch.h.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_LOWER_PHASE_BUCKETS_H_
#define PENSTOCK_PLANNER_LOWER_PHASE_BUCKETS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/collective.h"
#include "base/dtype.h"
#include "graph/graph.h"
#include "graph/sharding.h"
#include "planner/lower/phases.h"

namespace penstock::planner {

// How many bytes of tensors, as a device holds them whole, move together.
struct BucketLimits {
  int64_t bytes = 0;  // 0: each tensor by itself
  // Over these axes, if not that.
  std::function<int64_t(CollectiveKind kind, const std::vector<graph::AxisRef>& axes)> bytes_over =
      {};

  // The bytes of a bucket of such collectives over these axes.
  int64_t Over(CollectiveKind kind, const std::vector<graph::AxisRef>& axes) const {
    return bytes_over ? bytes_over(kind, axes) : bytes;
  }
};

// What the collectives of a bucket have in common.
struct BucketKey {
  int stage = 0;                                        // that runs them
  PhaseKey phase;                                       // that they are in
  CollectiveKind kind = CollectiveKind::kAllGather;     // all_gather or reduce_scatter
  std::vector<graph::AxisRef> axes;                     // over which they gather or scatter
  graph::Reduction reduction = graph::Reduction::kSum;  // of a reduce_scatter
  DType dtype = DType::kF32;                            // of all elements
  friend auto operator<=>(const BucketKey&, const BucketKey&) = default;
};

// REQUIRES: the node is an all_gather or a reduce_scatter.
BucketKey BucketKeyOf(const graph::Graph& graph, const std::vector<NodePhase>& phases,
                      graph::NodeId id);

// The bytes of the tensor that such a node scatters or gathers, on a device that holds it whole.
int64_t WholeBytes(const graph::Graph& graph, graph::NodeId id);

// Buckets of at least two nodes. REQUIRES: reshards lowered; one phase a node.
std::vector<std::vector<graph::NodeId>> FormPhaseBuckets(const graph::Graph& graph,
                                                         const std::vector<NodePhase>& phases,
                                                         const BucketLimits& limits);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_PHASE_BUCKETS_H_
