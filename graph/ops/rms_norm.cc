// rms_norm(x[..., n], scale[n]) {epsilon=1e-5} -> y, [rstd[...]]: x rstd scale over the last
// dimension, rstd = 1 / sqrt(mean(x^2) + epsilon) (Zhang & Sennrich, arXiv:1910.07467).

#include "base/status_macros.h"
#include "graph/ops/norm.h"

namespace penstock::graph::ops {
namespace {

class RmsNormOp : public Op {
 public:
  std::string_view name() const override { return "rms_norm"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return {{"epsilon", Kind::kDouble}}; }
  int num_optional_results() const override { return 1; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNormOperand(context, 0));
    RETURN_IF_ERROR(CheckFeatureVector(context, 1, 0));
    return std::vector<TensorType>{context.operands[0], StatisticsOf(context.operands[0])};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return LastDimensionRule(context, FactorKind::kNeedReplication, /*feature_vectors=*/{1});
  }
  int num_residuals() const override { return 1; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId x = node.operands[0];
    const ValueId rstd = node.results[1];
    return std::vector<ValueId>{builder.Add("rms_norm_grad", {grads[0], x, node.operands[1], rstd}),
                                builder.Add("rms_norm_weight_grad", {grads[0], x, rstd})};
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    return {static_cast<int>(context.operands[0].shape.size()) - 1};
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId x = node.operands[0];
    const ValueId square =
        builder.Add("reduce_mean", {builder.Add("mul", {x, x})}, {{"axes", AttrValue::Ints({-1})}});
    const ValueId rstd = AddRstd(builder, square, node.attributes);
    const ValueId normal = builder.Add("mul", {x, BroadcastStatistics(builder, rstd, x)});
    const ValueId y = builder.Add("mul", {normal, BroadcastFeatures(builder, node.operands[1], x)});
    return BoundResults(builder, node, {y, rstd});
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 4, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeRmsNorm() { return std::make_unique<RmsNormOp>(); }

}  // namespace penstock::graph::ops
