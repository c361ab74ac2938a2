// sigmoid(x): y = 1 / (1 + e^-x); y' = y - y^2.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId SigmoidGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId y = node.results[0];
  const ValueId slope = builder.Add("sub", {y, builder.Add("mul", {y, y})});
  return builder.Add("mul", {dy, slope});
}

}  // namespace

std::unique_ptr<const Op> MakeSigmoid() {
  return MakeUnary({.name = "sigmoid", .flops = 9, .gradient = SigmoidGradient});
}

}  // namespace penstock::graph::ops
