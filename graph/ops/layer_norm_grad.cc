// layer_norm_grad(dy, x, scale, mean, rstd[, r]) -> dx = rstd (g - mean(g) - z mean(g z)) + r,
// where g = dy scale, z = (x - mean) rstd and the means are over the last dimension. r is what
// other readers of x contribute to its gradient.

#include "base/status_macros.h"
#include "graph/ops/norm.h"

namespace penstock::graph::ops {
namespace {

class LayerNormGradOp : public Op {
 public:
  std::string_view name() const override { return "layer_norm_grad"; }
  int min_operands() const override { return 5; }
  int max_operands() const override { return 6; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNormOperand(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    RETURN_IF_ERROR(CheckFeatureVector(context, 2, 0));
    RETURN_IF_ERROR(CheckStatistics(context, 3, 0));
    RETURN_IF_ERROR(CheckStatistics(context, 4, 0));
    if (context.operands.size() > 5) RETURN_IF_ERROR(CheckSameType(context, 5, 0));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule =
        LastDimensionRule(context, FactorKind::kNeedReplication, /*feature_vectors=*/{2});
    rule.linear = {{0}};
    if (context.operands.size() > 5) rule.linear[0].push_back(5);
    return rule;
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    return {static_cast<int>(context.operands[0].shape.size()) - 1};
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId x = node.operands[1];
    const Attributes last = {{"axes", AttrValue::Ints({-1})}};
    const ValueId g =
        builder.Add("mul", {node.operands[0], BroadcastFeatures(builder, node.operands[2], x)});
    const ValueId mean = BroadcastStatistics(builder, node.operands[3], x);
    const ValueId rstd = BroadcastStatistics(builder, node.operands[4], x);
    const ValueId z = builder.Add("mul", {builder.Add("sub", {x, mean}), rstd});
    const ValueId mean_g = builder.Add("reduce_mean", {g}, last);
    const ValueId mean_gz = builder.Add("reduce_mean", {builder.Add("mul", {g, z})}, last);
    const ValueId along_z = builder.Add("mul", {z, BroadcastStatistics(builder, mean_gz, x)});
    const ValueId centred = builder.Add("sub", {g, BroadcastStatistics(builder, mean_g, x)});
    const ValueId dx = builder.Add("mul", {rstd, builder.Add("sub", {centred, along_z})});
    if (node.operands.size() == 5) return std::vector<ValueId>{dx};
    return std::vector<ValueId>{builder.Add("add", {dx, node.operands[5]})};
  }
  OpCost Cost(const OpContext& context) const override {
    const double flops = context.operands.size() > 5 ? 15 : 14;
    return CostOf(context, flops, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeLayerNormGrad() { return std::make_unique<LayerNormGradOp>(); }

}  // namespace penstock::graph::ops
