// sub(x, y): x - y.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

std::vector<ValueId> SubGradient(GraphBuilder& builder, const Node& /*node*/, ValueId dz) {
  return {dz, builder.Add("neg", {dz})};
}

}  // namespace

std::unique_ptr<const Op> MakeSub() {
  return MakeBinary({.name = "sub", .flops = 1, .gradient = SubGradient, .linear = {{0, 1}}});
}

}  // namespace penstock::graph::ops
