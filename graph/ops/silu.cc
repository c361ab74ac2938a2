// silu(x): y = x s with s = sigmoid x; y' = s + y (1 - s).

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId SiluGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId y = node.results[0];
  const ValueId s = builder.Add("sigmoid", {node.operands[0]});
  const ValueId rest = builder.Add("sub", {y, builder.Add("mul", {y, s})});
  return builder.Add("mul", {dy, builder.Add("add", {s, rest})});
}

}  // namespace

std::unique_ptr<const Op> MakeSilu() {
  return MakeUnary({.name = "silu", .flops = 10, .gradient = SiluGradient});
}

}  // namespace penstock::graph::ops
