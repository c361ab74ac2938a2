// div(x, y): x / y, truncated towards zero for integers.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

std::vector<ValueId> DivGradient(GraphBuilder& builder, const Node& node, ValueId dz) {
  const ValueId dx = builder.Add("div", {dz, node.operands[1]});
  return {dx, builder.Add("neg", {builder.Add("mul", {dx, node.results[0]})})};
}

}  // namespace

std::unique_ptr<const Op> MakeDiv() {
  return MakeBinary({.name = "div",
                     .flops = 4,
                     .gradient = DivGradient,
                     .linear = {{0}},
                     .rounds_integers = true});
}

}  // namespace penstock::graph::ops
