// cross_entropy_grad(logits[..., v], labels, max, log_sum, dloss[...]) -> dlogits = dloss
// (e^(logits - max - log_sum) - [label]), elementwise over v.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class CrossEntropyGradOp : public Op {
 public:
  std::string_view name() const override { return "cross_entropy_grad"; }
  int min_operands() const override { return 5; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckInteger(context, 1));
    const TensorType& logits = context.operands[0];
    const TensorType statistics{StatisticsDType(logits.dtype), WithoutLast(logits.shape)};
    RETURN_IF_ERROR(
        CheckOperandShape(context, 1, statistics.shape, "one entry a row of operand 0"));
    RETURN_IF_ERROR(
        CheckOperandType(context, 2, statistics, "the largest logit of each row of operand 0"));
    RETURN_IF_ERROR(
        CheckOperandType(context, 3, statistics, "the log of the sum of each row of operand 0"));
    RETURN_IF_ERROR(CheckOperandType(context, 4, statistics, "one entry a row of operand 0"));
    return std::vector<TensorType>{logits};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = LastDimensionRule(context, FactorKind::kPassThrough);
    rule.linear = {{4}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 10, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCrossEntropyGrad() { return std::make_unique<CrossEntropyGradOp>(); }

}  // namespace penstock::graph::ops
