// sum_squares(x): the sum over all elements of x^2, a scalar.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class SumSquaresOp : public Op {
 public:
  std::string_view name() const override { return "sum_squares"; }
  int min_operands() const override { return 1; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    return std::vector<TensorType>{{context.operands[0].dtype, {}}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    rule.operands = {AddFactors(rule, context.operands[0].shape, FactorKind::kReduction)};
    rule.results.emplace_back();
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId twice = builder.Add("mul", {grads[0], ScalarLike(builder, grads[0], 2)});
    return std::vector<ValueId>{builder.Add("mul", {node.operands[0], twice})};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 2, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeSumSquares() { return std::make_unique<SumSquaresOp>(); }

}  // namespace penstock::graph::ops
