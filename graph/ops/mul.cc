// mul(x, y): x y.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

std::vector<ValueId> MulGradient(GraphBuilder& builder, const Node& node, ValueId dz) {
  return {builder.Add("mul", {dz, node.operands[1]}), builder.Add("mul", {dz, node.operands[0]})};
}

}  // namespace

std::unique_ptr<const Op> MakeMul() {
  return MakeBinary({.name = "mul", .flops = 1, .gradient = MulGradient, .linear = {{0}, {1}}});
}

}  // namespace penstock::graph::ops
