// batch_norm_inference(x[n, c, ...], scale[c], bias[c], mean[c], variance[c]) {epsilon=1e-5} -> y:
// (x
// - mean) / sqrt(variance + epsilon) scale + bias, with statistics that are given.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class BatchNormInferenceOp : public Op {
 public:
  std::string_view name() const override { return "batch_norm_inference"; }
  int min_operands() const override { return 5; }
  std::vector<AttrSpec> attributes() const override { return {{"epsilon", Kind::kDouble}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckChannels(context, 0));
    for (const int operand : {1, 2}) RETURN_IF_ERROR(CheckChannelVector(context, operand, 0));
    for (const int operand : {3, 4}) RETURN_IF_ERROR(CheckChannelStatistics(context, operand, 0));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ChannelRule(context, FactorKind::kPassThrough);
  }
  bool is_differentiable() const override { return true; }
  // With r = 1 / sqrt(variance + epsilon): dx = dy scale r, dmean = -scale r dbias, and dvariance =
  // -scale r^2 dscale / 2.
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId x = node.operands[0];
    const ValueId scale = node.operands[1];
    const ValueId mean = node.operands[3];
    const ValueId variance = node.operands[4];
    const std::vector<ValueId> weights =
        builder.AddMulti("batch_norm_weight_grad", {grads[0], x, mean, variance}, node.attributes);
    if (weights.empty()) return builder.status();
    const ValueId no_bias = ZerosLike(builder, scale);
    const ValueId no_mean = ZerosLike(builder, mean);
    const ValueId dx = builder.Add("batch_norm_inference",
                                   {grads[0], scale, no_bias, no_mean, variance}, node.attributes);
    const ValueId epsilon =
        ScalarLike(builder, variance, node.attributes.GetDouble("epsilon", 1e-5));
    const ValueId rstd = builder.Add("rsqrt", {builder.Add("add", {variance, epsilon})});
    if (!builder.status().ok()) return builder.status();
    const DType dtype = builder.type(variance).dtype;
    const auto as_statistic = [&](ValueId value) {
      if (!builder.status().ok() || builder.type(value).dtype == dtype) return value;
      return builder.Add("cast", {value}, {{"dtype", dtype}});
    };
    const ValueId slope = builder.Add("mul", {as_statistic(scale), rstd});
    const ValueId dmean =
        builder.Add("neg", {builder.Add("mul", {slope, as_statistic(weights[1])})});
    const ValueId half = ScalarLike(builder, variance, -0.5);
    const ValueId curve = builder.Add("mul", {builder.Add("mul", {slope, rstd}), half});
    const ValueId dvariance = builder.Add("mul", {curve, as_statistic(weights[0])});
    return std::vector<ValueId>{dx, weights[0], weights[1], dmean, dvariance};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 4, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBatchNormInference() {
  return std::make_unique<BatchNormInferenceOp>();
}

}  // namespace penstock::graph::ops
