// log(x): y = ln x.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId LogGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  return builder.Add("div", {dy, node.operands[0]});
}

}  // namespace

std::unique_ptr<const Op> MakeLog() {
  return MakeUnary({.name = "log", .flops = 8, .gradient = LogGradient});
}

}  // namespace penstock::graph::ops
