// exp(x): y = e^x.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId ExpGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  return builder.Add("mul", {dy, node.results[0]});
}

}  // namespace

std::unique_ptr<const Op> MakeExp() {
  return MakeUnary({.name = "exp", .flops = 8, .gradient = ExpGradient});
}

}  // namespace penstock::graph::ops
