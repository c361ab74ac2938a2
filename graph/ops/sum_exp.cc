// sum_exp(x[..., n], m[...]): the sum over the last axis of exp(x - m). With m the maximum this is
// the stable half of a log-sum-exp whose axis is split. Of operands of 16 bits the sum is f32.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class SumExpOp : public Op {
 public:
  std::string_view name() const override { return "sum_exp"; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    const Shape shape = WithoutLast(context.operands[0].shape);
    RETURN_IF_ERROR(
        CheckOperandShape(context, 1, shape, "that of operand 0 but for the last axis"));
    return std::vector<TensorType>{{StatisticsDType(context.operands[0].dtype), shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return LastDimensionRule(context, FactorKind::kReduction);
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId x = node.operands[0];
    const int64_t last = static_cast<int64_t>(builder.type(x).shape.size()) - 1;
    const ValueId m = BroadcastLike(builder, node.operands[1], x, {last});
    const ValueId exp = builder.Add("exp", {builder.Add("sub", {x, m})});
    const DType dtype = builder.type(x).dtype;
    const ValueId dy = CastTo(builder, grads[0], dtype);
    const ValueId dx = builder.Add("mul", {exp, BroadcastLike(builder, dy, x, {last})});
    const ValueId dm = CastTo(
        builder, builder.Add("neg", {builder.Add("mul", {grads[0], node.results[0]})}), dtype);
    return std::vector<ValueId>{dx, dm};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 10, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeSumExp() { return std::make_unique<SumExpOp>(); }

}  // namespace penstock::graph::ops
