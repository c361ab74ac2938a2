// bias_gelu(x[..., n], b[n]) {approximate}: gelu(x + b) in one pass over memory.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class BiasGeluOp : public Op {
 public:
  std::string_view name() const override { return "bias_gelu"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return {{"approximate", Kind::kString}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    RETURN_IF_ERROR(CheckOperandShape(context, 1, {context.operands[0].shape.back()},
                                      "the last dimension of operand 0"));
    RETURN_IF_ERROR(CheckApproximate(context.attributes));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule =
        LastDimensionRule(context, FactorKind::kPassThrough, /*feature_vectors=*/{1});
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId dx = builder.Add("bias_gelu_grad", {node.operands[0], node.operands[1], grads[0]},
                                   node.attributes);
    return std::vector<ValueId>{dx, SumLeading(builder, dx)};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 16, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBiasGelu() { return std::make_unique<BiasGeluOp>(); }

}  // namespace penstock::graph::ops
