// channel_variance(x[n, c, ...], mean[c]) -> [c]: the mean of (x - mean)^2 over all dimensions but
// the channels. Each part divides by the global extents, so parts add up. It is what batch_norm
// over a split batch is made of, and has no gradient.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class ChannelVarianceOp : public Op {
 public:
  std::string_view name() const override { return "channel_variance"; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckChannels(context, 0));
    RETURN_IF_ERROR(CheckChannelStatistics(context, 1, 0));
    return std::vector<TensorType>{ChannelStatisticsOf(context.operands[0])};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ChannelRule(context, FactorKind::kReduction);
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 3, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeChannelVariance() { return std::make_unique<ChannelVarianceOp>(); }

}  // namespace penstock::graph::ops
