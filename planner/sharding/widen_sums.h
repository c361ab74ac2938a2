// Pass widen-sums: what devices would add up in bf16 or f16, they add up in f32, and the sum is
// rounded once, as on one device. Collectives of such sums move twice the bytes.
//
// An operator that can leave its part of a sum in f32 (attribute `dtype`, as of products) does so,
// and what reads nothing but parts, as the addition of two, passes them on in f32. A part that
// another operator makes is cast. What the program casts to 16 bits before it is added up
// (partial_sums="round", of train.gradient_dtype) stays as it is.
//
//   %p.local = matmul(%x, %w)              : bf16[8, 8] @[_, _] partial(sum, tp)
//   %p = reshard(%p.local)                 : bf16[8, 8] @[_, _]
// becomes
//   %p.local = matmul(%x, %w) {dtype=f32}  : f32[8, 8] @[_, _] partial(sum, tp)
//   %p.f32 = reshard(%p.local)             : f32[8, 8] @[_, _]
//   %p = cast(%p.f32) {dtype=bf16}         : bf16[8, 8] @[_, _]
//
// REQUIRES: redistributions are explicit (insert_reshards.h) and not lowered yet.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SHARDING_WIDEN_SUMS_H_
#define PENSTOCK_PLANNER_SHARDING_WIDEN_SUMS_H_

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

absl::Status WidenSums(const graph::OpRegistry& ops, graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_WIDEN_SUMS_H_
