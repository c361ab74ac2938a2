// sin(x): y = sin x.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId SinGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  return builder.Add("mul", {dy, builder.Add("cos", {node.operands[0]})});
}

}  // namespace

std::unique_ptr<const Op> MakeSin() {
  return MakeUnary({.name = "sin", .flops = 10, .gradient = SinGradient});
}

}  // namespace penstock::graph::ops
