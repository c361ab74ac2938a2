// bias_gelu_grad(x[..., n], b[n], dy) {approximate}: the gradient of gelu at x + b, times dy.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class BiasGeluGradOp : public Op {
 public:
  std::string_view name() const override { return "bias_gelu_grad"; }
  int min_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return {{"approximate", Kind::kString}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    RETURN_IF_ERROR(CheckOperandShape(context, 1, {context.operands[0].shape.back()},
                                      "the last dimension of operand 0"));
    RETURN_IF_ERROR(CheckApproximate(context.attributes));
    RETURN_IF_ERROR(CheckSameType(context, 2, 0));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule =
        LastDimensionRule(context, FactorKind::kPassThrough, /*feature_vectors=*/{1});
    rule.linear = {{2}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 21, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBiasGeluGrad() { return std::make_unique<BiasGeluGradOp>(); }

}  // namespace penstock::graph::ops
