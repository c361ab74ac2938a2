// Pipelines whose micro-batches enter at both ends (Placement::kBidirectional).
//
// Each stage lies on two groups of devices, and each of them takes half of the micro-batches. Up to
// lowering that is one more split of the batch, like data parallelism: the mesh gets an axis
// "direction" of size 2, and what was split over micro-batches is split over both. So parameters
// and states lie on both groups, gradients and losses are summed over both, and random draws are
// those of the whole batch. Lowering knows where the devices of a direction are: of P stages,
// stage s has group s in direction 0, as its chunk 0, and group P - 1 - s in direction 1, as its
// chunk 1.
//
// Worked example: on [mb=8 temporal, dp=2], an input @[mb.dp, _] becomes one @[mb.direction.dp, _]
// on [mb=4 temporal, direction=2, dp=2]. Of 4 stages, group 0 runs stage 0 for four micro-batches
// and stage 3 for the four others.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_DIRECTIONS_H_
#define PENSTOCK_PLANNER_STRATEGY_DIRECTIONS_H_

#include <cstdint>

#include "absl/status/status.h"

#include "graph/graph.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// Into how many stages, at least, a model is cut for each group of devices: as many as the policy
// needs chunks, but one where each stage is a chunk of two groups.
int StagesPerGroup(const Policy& policy);

// Whether so many micro-batches can enter at both ends: an even number from 4 on.
absl::Status CheckDirections(int64_t num_microbatches);

// The pass `split-directions`: splits the temporal axis in two. Its second half is the first axis
// of the mesh that has devices. Errors: there are several meshes, or CheckDirections.
absl::Status SplitDirections(graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_DIRECTIONS_H_
