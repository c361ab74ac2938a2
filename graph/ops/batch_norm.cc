// batch_norm(x[n, c, ...], scale[c], bias[c]) {epsilon=1e-5} -> y, [mean[c], variance[c]]: (x -
// mean) / sqrt(variance + epsilon) scale + bias, with the mean and the variance of each channel
// over the batch and the image (Ioffe & Szegedy, arXiv:1502.03167). They are those of the whole
// batch: over a split batch it becomes sums that are reduced, so that every plan computes the same
// numbers.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class BatchNormOp : public Op {
 public:
  std::string_view name() const override { return "batch_norm"; }
  int min_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return {{"epsilon", Kind::kDouble}}; }
  int num_optional_results() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckChannels(context, 0));
    for (const int operand : {1, 2}) RETURN_IF_ERROR(CheckChannelVector(context, operand, 0));
    const TensorType statistics = ChannelStatisticsOf(context.operands[0]);
    return std::vector<TensorType>{context.operands[0], statistics, statistics};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ChannelRule(context, FactorKind::kNeedReplication);
  }
  int num_residuals() const override { return 2; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    if (grads[0] == kNoValue || grads[1] != kNoValue || grads[2] != kNoValue) {
      return Invalid("batch_norm: its mean and variance have no gradient");
    }
    const ValueId x = node.operands[0];
    const ValueId mean = node.results[1];
    const ValueId variance = node.results[2];
    if (!builder.status().ok()) return builder.status();
    // batch_norm_grad reads the sums in the type of statistics.
    const DType dtype = builder.type(x).dtype;
    Attributes of_weights = node.attributes;
    if (StatisticsDType(dtype) != dtype) of_weights.Set("dtype", StatisticsDType(dtype));
    const std::vector<ValueId> weights =
        builder.AddMulti("batch_norm_weight_grad", {grads[0], x, mean, variance}, of_weights);
    if (weights.empty()) return builder.status();
    const ValueId dx = builder.Add(
        "batch_norm_grad", {grads[0], x, node.operands[1], mean, variance, weights[0], weights[1]},
        node.attributes);
    return std::vector<ValueId>{dx, CastTo(builder, weights[0], dtype),
                                CastTo(builder, weights[1], dtype)};
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    std::vector<int> factors = {0};
    const int rank = static_cast<int>(context.operands[0].shape.size());
    for (int factor = 2; factor < rank; ++factor) factors.push_back(factor);
    return factors;
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId x = node.operands[0];
    if (!builder.status().ok()) return builder.status();
    std::vector<int64_t> axes = Iota(0, static_cast<int64_t>(builder.type(x).shape.size()));
    axes.erase(axes.begin() + 1);
    Attributes of_mean = {{"axes", AttrValue::Ints(axes)}};
    const DType dtype = builder.type(x).dtype;
    if (StatisticsDType(dtype) != dtype) of_mean.Set("dtype", StatisticsDType(dtype));
    const ValueId mean = builder.Add("reduce_mean", {x}, of_mean);
    const ValueId variance = builder.Add("channel_variance", {x, mean});
    const ValueId y =
        builder.Add("batch_norm_inference", {x, node.operands[1], node.operands[2], mean, variance},
                    node.attributes);
    return BoundResults(builder, node, {y, mean, variance});
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 8, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBatchNorm() { return std::make_unique<BatchNormOp>(); }

}  // namespace penstock::graph::ops
