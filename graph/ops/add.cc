// add(x, y): x + y.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

std::vector<ValueId> AddGradient(GraphBuilder& /*builder*/, const Node& /*node*/, ValueId dz) {
  return {dz, dz};
}

}  // namespace

std::unique_ptr<const Op> MakeAdd() {
  return MakeBinary({.name = "add",
                     .flops = 1,
                     .gradient = AddGradient,
                     .linear = {{0, 1}},
                     .role = OpRole::kAdd});
}

}  // namespace penstock::graph::ops
