// gelu_grad(x, dy): the gradient of gelu at x, times dy.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class GeluGradOp : public Op {
 public:
  std::string_view name() const override { return "gelu_grad"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return {{"approximate", Kind::kString}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    RETURN_IF_ERROR(CheckApproximate(context.attributes));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    rule.linear = {{1}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 20, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeGeluGrad() { return std::make_unique<GeluGradOp>(); }

}  // namespace penstock::graph::ops
