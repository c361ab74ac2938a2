// Joins products with what follows them on the same device, so that a library of matrix products
// does both in one pass over memory: cuBLASLt calls it an epilogue. Gradients of norms are joined
// with the sum that they are a term of.
//
//   %p = einsum(%x, %w)            %y = einsum_bias(%x, %w, %b)
//   %y = bias_add(%p, %b)
//
//   %p = einsum(%x, %w)            %y, %z = einsum_bias_gelu(%x, %w, %b)
//   %y = bias_gelu(%p, %b)
//
//   %dp = bias_gelu_grad(%p, %b, %dy)    gelu_grad(%z, %dy)
//
//   %dy = einsum(%dz, %v)          %dp = einsum_gelu_grad(%dz, %v, %z)
//   %dp = gelu_grad(%z, %dy)
//
//   %y = bias_add(%p, %b)          %s = einsum_bias(%x, %w, %b, %r)
//   %s = add(%r, %y)
//
//   %p = einsum(%x, %w)            %s = einsum_bias(%x, %w, %r)
//   %s = add(%r, %p)
//
//   %dx = layer_norm_grad(...)     %s = layer_norm_grad(..., %r)
//   %s = add(%r, %dx)
//
// and likewise with matmul, whose equation is written out, and rms_norm_grad. What is joined is of
// one stage, mesh and phase; a product that something else reads stays, and so does one that is
// partial over devices: its parts are added up first. gelu is joined if it is the tanh
// approximation, which is the one that cuBLASLt has. Gradients of biases are not joined: cuBLASLt
// computes them by a launch of its own, which is slower than reduce_sum.
//
// A sum is joined with the term that is made last: the other one is there by then, and nothing is
// computed later than without the pass.
//
// Nodes stay in their order. Where the gradient of gelu comes before gelu, neither is joined with
// the product.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_FUSE_EPILOGUES_H_
#define PENSTOCK_PLANNER_STRATEGY_FUSE_EPILOGUES_H_

#include <functional>

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

// Whether nodes of a stage are joined: whether its devices are faster that way.
using FusesStage = std::function<bool(const graph::Graph& graph, int stage)>;

// The pass `fuse-epilogues`. Shardings and stages are kept. REQUIRES: reshards are lowered, or
// there is one device.
absl::Status FuseEpilogues(const graph::OpRegistry& ops, const FusesStage& fuses,
                           graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_FUSE_EPILOGUES_H_
