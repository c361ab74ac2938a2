// rms_norm_grad(dy, x, scale, rstd[, r]) -> dx = rstd (g - z mean(g z)) + r, where g = dy scale, z
// = x rstd and the mean is over the last dimension. r is what other readers of x contribute to its
// gradient.

#include "base/status_macros.h"
#include "graph/ops/norm.h"

namespace penstock::graph::ops {
namespace {

class RmsNormGradOp : public Op {
 public:
  std::string_view name() const override { return "rms_norm_grad"; }
  int min_operands() const override { return 4; }
  int max_operands() const override { return 5; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNormOperand(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    RETURN_IF_ERROR(CheckFeatureVector(context, 2, 0));
    RETURN_IF_ERROR(CheckStatistics(context, 3, 0));
    if (context.operands.size() > 4) RETURN_IF_ERROR(CheckSameType(context, 4, 0));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule =
        LastDimensionRule(context, FactorKind::kNeedReplication, /*feature_vectors=*/{2});
    rule.linear = {{0}};
    if (context.operands.size() > 4) rule.linear[0].push_back(4);
    return rule;
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    return {static_cast<int>(context.operands[0].shape.size()) - 1};
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId x = node.operands[1];
    const ValueId g =
        builder.Add("mul", {node.operands[0], BroadcastFeatures(builder, node.operands[2], x)});
    const ValueId rstd = BroadcastStatistics(builder, node.operands[3], x);
    const ValueId z = builder.Add("mul", {x, rstd});
    const ValueId mean_gz =
        builder.Add("reduce_mean", {builder.Add("mul", {g, z})}, {{"axes", AttrValue::Ints({-1})}});
    const ValueId along_z = builder.Add("mul", {z, BroadcastStatistics(builder, mean_gz, x)});
    const ValueId dx = builder.Add("mul", {rstd, builder.Add("sub", {g, along_z})});
    if (node.operands.size() == 4) return std::vector<ValueId>{dx};
    return std::vector<ValueId>{builder.Add("add", {dx, node.operands[4]})};
  }
  OpCost Cost(const OpContext& context) const override {
    const double flops = context.operands.size() > 4 ? 10 : 9;
    return CostOf(context, flops, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeRmsNormGrad() { return std::make_unique<RmsNormGradOp>(); }

}  // namespace penstock::graph::ops
