// softmax(x) {axis=-1}: e^x / sum of e^x along the axis. Over a split axis it becomes a maximum, a
// sum and elementwise operators.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

// The factor of the axis is the axis.
int AxisFactor(const OpContext& context) {
  return AxisOf(context.attributes, -1, static_cast<int>(context.operands[0].shape.size()));
}

class SoftmaxOp : public Op {
 public:
  std::string_view name() const override { return "softmax"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override { return {{"axis", Kind::kInt}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    ASSIGN_OR_RETURN([[maybe_unused]] const int axis,
                     NormalizeOperandAxis(context, context.attributes.GetInt("axis", -1)));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    rule.factors[AxisFactor(context)].kind = FactorKind::kNeedReplication;
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{
        builder.Add("softmax_grad", {node.results[0], grads[0]}, node.attributes)};
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    return {AxisFactor(context)};
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId x = node.operands[0];
    const int64_t axis =
        AxisOf(node.attributes, -1, static_cast<int>(builder.type(x).shape.size()));
    const Attributes axes = {{"axes", AttrValue::Ints({axis})}};
    const ValueId max = BroadcastLike(builder, builder.Add("reduce_max", {x}, axes), x, {axis});
    const ValueId exp = builder.Add("exp", {builder.Add("sub", {x, max})});
    const ValueId sum = BroadcastLike(builder, builder.Add("reduce_sum", {exp}, axes), x, {axis});
    return std::vector<ValueId>{builder.Add("div", {exp, sum})};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 12, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeSoftmax() { return std::make_unique<SoftmaxOp>(); }

}  // namespace penstock::graph::ops
