// min(x, y): the smaller one. Where both are equal the gradient goes to x.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

std::vector<ValueId> MinGradient(GraphBuilder& builder, const Node& node, ValueId dz) {
  const ValueId takes_y = builder.Add("greater", {node.operands[0], node.operands[1]});
  const ValueId zero = ScalarLike(builder, dz, 0);
  return {builder.Add("where", {takes_y, zero, dz}), builder.Add("where", {takes_y, dz, zero})};
}

}  // namespace

std::unique_ptr<const Op> MakeMin() {
  return MakeBinary({.name = "min", .flops = 1, .gradient = MinGradient});
}

}  // namespace penstock::graph::ops
