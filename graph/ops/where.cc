// where(condition, x, y): x where the condition holds, else y. Any of the three may be a scalar.

#include "base/status_macros.h"
#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

class WhereOp : public Op {
 public:
  std::string_view name() const override { return "where"; }
  int min_operands() const override { return 3; }
  InferredTypes InferTypes(const OpContext& context) const override {
    if (context.operands[0].dtype != DType::kBool) {
      return Invalid("the condition is a bool, not ", Describe(context, 0));
    }
    RETURN_IF_ERROR(CheckSameDType(context, 2, 1));
    ASSIGN_OR_RETURN(Shape shape, CommonShape(context));
    return std::vector<TensorType>{{context.operands[1].dtype, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    rule.linear = {{1, 2}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId condition = node.operands[0];
    const ValueId zero = ScalarLike(builder, grads[0], 0);
    const ValueId dx = builder.Add("where", {condition, grads[0], zero});
    const ValueId dy = builder.Add("where", {condition, zero, grads[0]});
    return std::vector<ValueId>{kNoValue, SumToOperand(builder, dx, node.operands[1]),
                                SumToOperand(builder, dy, node.operands[2])};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 1, context.results[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeWhere() { return std::make_unique<WhereOp>(); }

}  // namespace penstock::graph::ops
