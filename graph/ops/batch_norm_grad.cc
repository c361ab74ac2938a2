// batch_norm_grad(dy[n, c, ...], x, scale[c], mean[c], variance[c], dscale[c], dbias[c])
// {epsilon=1e-5} -> dx = scale r (dy - dbias / m - z dscale / m), where r = 1 / sqrt(variance +
// epsilon), z = (x - mean) r and m elements have the channel. dscale and dbias have the type of
// statistics. Where dy, dscale and dbias are all terms of sums, so is dx.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class BatchNormGradOp : public Op {
 public:
  std::string_view name() const override { return "batch_norm_grad"; }
  int min_operands() const override { return 7; }
  std::vector<AttrSpec> attributes() const override { return {{"epsilon", Kind::kDouble}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckChannels(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    RETURN_IF_ERROR(CheckChannelVector(context, 2, 0));
    for (const int operand : {3, 4, 5, 6}) {
      RETURN_IF_ERROR(CheckChannelStatistics(context, operand, 0));
    }
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ChannelRule(context, FactorKind::kPassThrough);
    rule.linear = {{0, 5, 6}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 7, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBatchNormGrad() { return std::make_unique<BatchNormGradOp>(); }

}  // namespace penstock::graph::ops
