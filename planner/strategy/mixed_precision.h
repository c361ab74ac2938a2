// Mixed precision (Micikevicius et al., "Mixed precision training", 2018): products, attention,
// norms and elementwise chains of the forward and the backward pass compute in 16 bits, with f32
// weights, optimiser states, losses, statistics and sums.
//
// The pass rewrites a graph in f32. Each operator is of one kind (the table in mixed_precision.cc):
//
//   low      computes in 16 bits; operands in f32 are cast (matmul, attention,
//            layer_norm, batch_norm, embedding)
//   follow   in 16 bits if its operands are, in f32 if one is not (add, gelu, reshape)
//   sum      takes operands as they are and gives f32 (reduce_sum, reduce_mean)
//   full     computes in f32 (softmax, optimisers, operators of applications)
//
// Losses and statistics of operators in 16 bits are f32 by the operators' own definitions
// (cross_entropy, the mean and rstd of norms, the log-sum-exp of attention). A product, or another
// sum, that is read in f32 only is f32: the gradients of weights, summed and accumulated as such.
// Updates stay f32. So do inputs, states and what the graph returns.
//
// A value is cast once, where it is made. The cast of a parameter is thus made once a step, and
// keeps the parameter's sharding. At ZeRO level 3 (attribute per_use) a device casts the part
// that it holds, and each phase that reads the weight gathers the parts, which have 16 bits.
//
// Residual sums are what an embedding gives and layers add to. They have 16 bits like any other
// result. Asked for, embeddings and the norms of layers are full: then these sums and their
// gradients are f32, and rounding changes the gradients of a step by less than half as much.
//
// Random draws are the same: they depend on stream, step and element.
//
// Worked example, in bf16:
//
//     %w = parameter : f32[8, 8]           %w = parameter : f32[8, 8]
//     %p = matmul(%x, %w) : f32[4, 8]      %w.bf16 = cast(%w) {dtype=bf16} : bf16[8, 8]
//                                          %x.bf16 = cast(%x) {dtype=bf16} : bf16[4, 8]
//                                          %p = matmul(%x.bf16, %w.bf16) : bf16[4, 8]
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_MIXED_PRECISION_H_
#define PENSTOCK_PLANNER_STRATEGY_MIXED_PRECISION_H_

#include "absl/status/status.h"

#include "base/dtype.h"
#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

// The pass `mixed-precision`. Shardings and stages are kept. REQUIRES: shardings are not propagated
// yet; `dtype` has 16 bits.
absl::Status MixPrecision(const graph::OpRegistry& ops, DType dtype, graph::Graph& graph,
                          bool residuals_in_f32 = false);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_MIXED_PRECISION_H_
