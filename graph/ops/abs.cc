// abs(x): y = |x|; the subgradient at 0 is dy, that of x for x >= 0.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId AbsGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId is_negative = builder.Add("less", {node.operands[0], ScalarLike(builder, dy, 0)});
  return builder.Add("where", {is_negative, builder.Add("neg", {dy}), dy});
}

}  // namespace

std::unique_ptr<const Op> MakeAbs() {
  return MakeUnary({.name = "abs", .flops = 1, .gradient = AbsGradient, .takes_integers = true});
}

}  // namespace penstock::graph::ops
