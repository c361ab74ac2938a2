// batch_norm_weight_grad(dy[n, c, ...], x, mean[c], variance[c]) {epsilon=1e-5, dtype} ->
// dscale[c], dbias[c]: the sums of dy (x - mean) / sqrt(variance + epsilon) and of dy over all
// dimensions but the channels.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class BatchNormWeightGradOp : public Op {
 public:
  std::string_view name() const override { return "batch_norm_weight_grad"; }
  int min_operands() const override { return 4; }
  std::vector<AttrSpec> attributes() const override {
    return {{"epsilon", Kind::kDouble}, kSumDType};
  }
  int num_results(const OpContext&) const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckChannels(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    for (const int operand : {2, 3}) RETURN_IF_ERROR(CheckChannelStatistics(context, operand, 0));
    TensorType vector = ChannelVectorOf(context.operands[0]);
    ASSIGN_OR_RETURN(vector.dtype, SumDTypeOf(context));
    return std::vector<TensorType>{vector, vector};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ChannelRule(context, FactorKind::kReduction);
    rule.linear = {{0}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 5, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBatchNormWeightGrad() {
  return std::make_unique<BatchNormWeightGradOp>();
}

}  // namespace penstock::graph::ops
