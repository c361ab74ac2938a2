// cos(x): y = cos x.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId CosGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  return builder.Add("neg", {builder.Add("mul", {dy, builder.Add("sin", {node.operands[0]})})});
}

}  // namespace

std::unique_ptr<const Op> MakeCos() {
  return MakeUnary({.name = "cos", .flops = 10, .gradient = CosGradient});
}

}  // namespace penstock::graph::ops
