// rsqrt(x): y = 1 / sqrt x; y' = -y^3 / 2.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId RsqrtGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId y = node.results[0];
  const ValueId cube = builder.Add("mul", {y, builder.Add("mul", {y, y})});
  const ValueId half = builder.Add("mul", {dy, ScalarLike(builder, dy, -0.5)});
  return builder.Add("mul", {half, cube});
}

}  // namespace

std::unique_ptr<const Op> MakeRsqrt() {
  return MakeUnary({.name = "rsqrt", .flops = 5, .gradient = RsqrtGradient});
}

}  // namespace penstock::graph::ops
