// tanh(x): y = tanh x; y' = 1 - y^2.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId TanhGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId y = node.results[0];
  const ValueId square = builder.Add("mul", {y, y});
  return builder.Add("mul", {dy, builder.Add("sub", {ScalarLike(builder, dy, 1), square})});
}

}  // namespace

std::unique_ptr<const Op> MakeTanh() {
  return MakeUnary({.name = "tanh", .flops = 10, .gradient = TanhGradient});
}

}  // namespace penstock::graph::ops
