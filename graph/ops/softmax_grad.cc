// softmax_grad(y, dy) {axis=-1}: dx = y (dy - sum of y dy along the axis).

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

// The factor of the axis is the axis.
int GradAxisFactor(const OpContext& context) {
  return AxisOf(context.attributes, -1, static_cast<int>(context.operands[0].shape.size()));
}

class SoftmaxGradOp : public Op {
 public:
  std::string_view name() const override { return "softmax_grad"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return {{"axis", Kind::kInt}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    ASSIGN_OR_RETURN([[maybe_unused]] const int axis,
                     NormalizeOperandAxis(context, context.attributes.GetInt("axis", -1)));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    rule.factors[GradAxisFactor(context)].kind = FactorKind::kNeedReplication;
    rule.linear = {{1}};
    return rule;
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    return {GradAxisFactor(context)};
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId y = node.operands[0];
    const ValueId dy = node.operands[1];
    const int64_t axis =
        AxisOf(node.attributes, -1, static_cast<int>(builder.type(y).shape.size()));
    const ValueId sum = builder.Add("reduce_sum", {builder.Add("mul", {y, dy})},
                                    {{"axes", AttrValue::Ints({axis})}});
    const ValueId centred = builder.Add("sub", {dy, BroadcastLike(builder, sum, y, {axis})});
    return std::vector<ValueId>{builder.Add("mul", {y, centred})};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 4, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeSoftmaxGrad() { return std::make_unique<SoftmaxGradOp>(); }

}  // namespace penstock::graph::ops
