// cross_entropy_grad(logits[..., v], labels, lse, dloss[...]) -> dlogits = dloss (e^(logits - lse)
// - [label]), elementwise over v.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class CrossEntropyGradOp : public Op {
 public:
  std::string_view name() const override { return "cross_entropy_grad"; }
  int min_operands() const override { return 4; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckInteger(context, 1));
    RETURN_IF_ERROR(CheckSameDType(context, 3, 0));
    const TensorType& logits = context.operands[0];
    const TensorType lse{StatisticsDType(logits.dtype), WithoutLast(logits.shape)};
    for (int i : {1, 2, 3}) {
      RETURN_IF_ERROR(CheckOperandShape(context, i, lse.shape, "one entry a row of operand 0"));
    }
    if (context.operands[2] != lse) {
      return Invalid(Describe(context, 2), " should be ", ToString(lse));
    }
    return std::vector<TensorType>{logits};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = LastDimensionRule(context, FactorKind::kPassThrough);
    rule.linear = {{3}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 10, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCrossEntropyGrad() { return std::make_unique<CrossEntropyGradOp>(); }

}  // namespace penstock::graph::ops
