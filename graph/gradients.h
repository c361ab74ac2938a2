// Reverse-mode differentiation of a graph: gradients are nodes like any others, so that whatever
// splits, places and schedules the forward pass does the same for the backward pass.
//
// Example: of y = matmul(x, w), loss = reduce_sum(y), where x is an input and w a parameter, the
// result holds the forward nodes, "loss.grad" = 1, "y.grad" = broadcast(loss.grad) and "w.grad" =
// matmul(x, y.grad) {transpose_a=true}. The gradient of x is asked for by nobody and is not there.
//
// Of the backward nodes, those that the gradient of some activation depends on are Phase::kBackward
// (B): a pipeline stage must run them before the stage ahead of it can go on. The others, which
// only parameter gradients need, are Phase::kWeightBackward (W) and can wait (Qi et al., "Zero
// bubble pipeline parallelism", arXiv:2401.10241). Above, y.grad is B as other layers could hang on
// it, and w.grad is W. A value computed from parameters alone counts as a parameter here.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_GRADIENTS_H_
#define PENSTOCK_GRAPH_GRADIENTS_H_

#include <vector>

#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::graph {

// What a graph and its gradients have become.
struct Differentiated {
  // The forward nodes, in order and with their names, attributes, shardings, meshes and stages;
  // optional results that gradients need are bound. Then the backward nodes, each with the stage
  // and mesh of its forward node. A gradient is called "<value>.grad", several uses of a value are
  // joined by `add`. Returns what the forward graph returned.
  Graph graph;
  ValueId loss = kNoValue;  // in `graph`
  // The parameters in declaration order and the gradient of each, of the parameter's type unless it
  // is rounded (GradientOptions); zeros where the loss does not depend on it, or where it is no
  // float.
  std::vector<ValueId> parameters;
  std::vector<ValueId> gradients;  // one for each
};

// How gradients are computed.
struct GradientOptions {
  // A value of the forward graph, of the loss's type, by which all gradients are multiplied. None:
  // 1.
  ValueId loss_gradient = kNoValue;
  // bf16 or f16: the gradients of f32 parameters are rounded to it before devices add up their
  // parts of a sum (cast.cc). f32: they are not.
  DType sum_dtype = DType::kF32;
};

// The gradient of `loss`, a float scalar of `forward`. An error names an operator on the way from a
// parameter to the loss that has no gradient; comparisons and integers end the way silently.
absl::StatusOr<Differentiated> Differentiate(const OpRegistry& ops, const Graph& forward,
                                             ValueId loss, const GradientOptions& options = {});

// The pass `gradients`: of a graph that returns one scalar; the result returns the scalar and then
// the gradient of every parameter, in declaration order.
absl::StatusOr<Graph> AddGradients(const OpRegistry& ops, const Graph& forward);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_GRADIENTS_H_
