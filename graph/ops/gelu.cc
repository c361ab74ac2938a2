// gelu(x): y = x Phi(x), or its tanh approximation (Hendrycks & Gimpel, arXiv:1606.08415).

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId GeluGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  return builder.Add("gelu_grad", {node.operands[0], dy}, node.attributes);
}

}  // namespace

std::unique_ptr<const Op> MakeGelu() {
  return MakeUnary(
      {.name = "gelu", .flops = 15, .gradient = GeluGradient, .has_approximate = true});
}

}  // namespace penstock::graph::ops
