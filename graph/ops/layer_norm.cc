// layer_norm(x[..., n], scale[n], bias[n]) {epsilon=1e-5} -> y, [mean[...], rstd[...]]: (x - mean)
// rstd scale + bias over the last dimension (Ba, Kiros & Hinton, arXiv:1607.06450), rstd = 1 /
// sqrt(variance + epsilon).

#include "base/status_macros.h"
#include "graph/ops/norm.h"

namespace penstock::graph::ops {
namespace {

class LayerNormOp : public Op {
 public:
  std::string_view name() const override { return "layer_norm"; }
  int min_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return {{"epsilon", Kind::kDouble}}; }
  int num_optional_results() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNormOperand(context, 0));
    RETURN_IF_ERROR(CheckFeatureVector(context, 1, 0));
    RETURN_IF_ERROR(CheckFeatureVector(context, 2, 0));
    const TensorType statistics = StatisticsOf(context.operands[0]);
    return std::vector<TensorType>{context.operands[0], statistics, statistics};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return LastDimensionRule(context, FactorKind::kNeedReplication, /*feature_vectors=*/{1, 2});
  }
  int num_residuals() const override { return 2; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId x = node.operands[0];
    const ValueId mean = node.results[1];
    const ValueId rstd = node.results[2];
    const ValueId dx = builder.Add("layer_norm_grad", {grads[0], x, node.operands[1], mean, rstd});
    const std::vector<ValueId> weights =
        builder.AddMulti("layer_norm_weight_grad", {grads[0], x, mean, rstd});
    if (weights.empty()) return builder.status();
    return std::vector<ValueId>{dx, weights[0], weights[1]};
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    return {static_cast<int>(context.operands[0].shape.size()) - 1};
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId x = node.operands[0];
    const Attributes last = {{"axes", AttrValue::Ints({-1})}};
    const ValueId mean = builder.Add("reduce_mean", {x}, last);
    const ValueId centred = builder.Add("sub", {x, BroadcastStatistics(builder, mean, x)});
    const ValueId variance =
        builder.Add("reduce_mean", {builder.Add("mul", {centred, centred})}, last);
    const ValueId rstd = AddRstd(builder, variance, node.attributes);
    const ValueId normal = builder.Add("mul", {centred, BroadcastStatistics(builder, rstd, x)});
    const ValueId scaled =
        builder.Add("mul", {normal, BroadcastFeatures(builder, node.operands[1], x)});
    const ValueId y = builder.Add("add", {scaled, BroadcastFeatures(builder, node.operands[2], x)});
    return BoundResults(builder, node, {y, mean, rstd});
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 8, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeLayerNorm() { return std::make_unique<LayerNormOp>(); }

}  // namespace penstock::graph::ops
