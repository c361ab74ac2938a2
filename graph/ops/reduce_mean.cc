// reduce_mean(x) {axes, keepdims=false}. Each part divides by the global extents, so parts add up.

#include "graph/ops/reduction.h"

namespace penstock::graph::ops {
namespace {

ValueId ReduceMeanGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const Shape shape = builder.type(node.operands[0]).shape;
  double count = 1;
  for (int64_t axis : ReducedAxes(node.attributes, static_cast<int>(shape.size()))) {
    count *= static_cast<double>(shape[axis]);
  }
  const ValueId scaled = builder.Add("mul", {dy, ScalarLike(builder, dy, 1 / count)});
  return BroadcastReduced(builder, node, scaled);
}

}  // namespace

std::unique_ptr<const Op> MakeReduceMean() {
  return MakeReduction({.name = "reduce_mean", .is_linear = true, .gradient = ReduceMeanGradient});
}

}  // namespace penstock::graph::ops
