// reduce_max(x) {axes, keepdims=false}. Elements that tie for the maximum share the gradient
// equally.

#include "graph/ops/reduction.h"

namespace penstock::graph::ops {
namespace {

ValueId ReduceMaxGradient(GraphBuilder& builder, const Node& node, ValueId dy) {
  const ValueId y = BroadcastReduced(builder, node, node.results[0]);
  const ValueId is_max = builder.Add("equal", {node.operands[0], y});
  const ValueId mask = builder.Add("cast", {is_max}, {{"dtype", builder.type(dy).dtype}});
  const ValueId count = builder.Add("reduce_sum", {mask}, node.attributes);
  const ValueId share = builder.Add("div", {dy, count});
  return builder.Add("mul", {mask, BroadcastReduced(builder, node, share)});
}

}  // namespace

std::unique_ptr<const Op> MakeReduceMax() {
  return MakeReduction({.name = "reduce_max",
                        .reduction = Reduction::kMax,
                        .takes_integers = true,
                        .gradient = ReduceMaxGradient});
}

}  // namespace penstock::graph::ops
