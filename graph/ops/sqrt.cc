// sqrt(x): y = sqrt x; y' = 1 / (2 y).

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId SqrtGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId half = builder.Add("mul", {dy, ScalarLike(builder, dy, 0.5)});
  return builder.Add("div", {half, node.results[0]});
}

}  // namespace

std::unique_ptr<const Op> MakeSqrt() {
  return MakeUnary({.name = "sqrt", .flops = 4, .gradient = SqrtGradient});
}

}  // namespace penstock::graph::ops
