// square(x): y = x x; y' = 2 x.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId SquareGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId x = node.operands[0];
  return builder.Add("mul", {dy, builder.Add("add", {x, x})});
}

}  // namespace

std::unique_ptr<const Op> MakeSquare() {
  return MakeUnary(
      {.name = "square", .flops = 1, .gradient = SquareGradient, .takes_integers = true});
}

}  // namespace penstock::graph::ops
