// bias_add(x[..., n], b[n]): x + b.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class BiasAddOp : public Op {
 public:
  std::string_view name() const override { return "bias_add"; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    RETURN_IF_ERROR(
        CheckOperandShape(context, 1, {context.operands[0].shape.back()}, "the last dimension"));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule =
        LastDimensionRule(context, FactorKind::kPassThrough, /*feature_vectors=*/{1});
    rule.linear = {{0, 1}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& /*node*/,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{grads[0], SumLeading(builder, grads[0])};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 1, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBiasAdd() { return std::make_unique<BiasAddOp>(); }

}  // namespace penstock::graph::ops
