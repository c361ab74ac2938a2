// relu(x): y = max(x, 0); the subgradient at 0 is 0.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId ReluGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId zero = ScalarLike(builder, dy, 0);
  const ValueId is_positive = builder.Add("greater", {node.operands[0], zero});
  return builder.Add("where", {is_positive, dy, zero});
}

}  // namespace

std::unique_ptr<const Op> MakeRelu() {
  return MakeUnary({.name = "relu", .flops = 1, .gradient = ReluGradient, .takes_integers = true});
}

}  // namespace penstock::graph::ops
