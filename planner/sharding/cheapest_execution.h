// How one node runs, chosen by cost: redistributing its operands and reducing its results are
// weighed together.
//
// Worked example. On [a=2], x @[_, a] times w @[a, _] is to give y @[a, _]. Rows of y over a need x
// moved (all_to_all) and w gathered. Terms over a need neither, and y is one reduce_scatter. With
// f32[8, 16], f32[16, 4] and f32[8, 4] that is 64 elements a device against 16.
//
// A choice is which factor each axis splits, among those that some operand or result splits over
// it. The rules of ChooseExecution give the first one; another replaces it if it moves fewer bytes
// and divides the work as far. Micro-batches stay where the rules put them.
//
// The choice sees one node. Two things that it does not see count nevertheless: a gathered operand
// may serve other readers, and an operand that moves forward moves backward too, for its gradient.
// So an operand may be charged in part; and in the forward pass, where no operand moves, half of
// the bytes count.
//
// An operand of which windows are read (halo.h) counts what its exchanges move, to the element.
//
// Thread rule: a pure function, but for the cache.

#ifndef PENSTOCK_PLANNER_SHARDING_CHEAPEST_EXECUTION_H_
#define PENSTOCK_PLANNER_SHARDING_CHEAPEST_EXECUTION_H_

#include "absl/types/span.h"

#include "graph/op.h"
#include "graph/sharding.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/reshard_cache.h"

namespace penstock::planner {

// `operands` and `results` are as in ChooseExecution; so are their types. `operand_shares` says
// which part of gathering each operand this node is charged with; empty: all. `moves_again`: the
// node is of a forward pass.
ExecutionSharding ChooseCheapestExecution(const graph::Mesh& mesh, const graph::ShardingRule& rule,
                                          absl::Span<const TensorType> operand_types,
                                          absl::Span<const TensorType> result_types,
                                          absl::Span<const graph::Sharding> operands,
                                          absl::Span<const graph::Sharding> results,
                                          absl::Span<const double> operand_shares, bool moves_again,
                                          ReshardCache* cache);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_CHEAPEST_EXECUTION_H_
