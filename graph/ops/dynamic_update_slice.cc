// dynamic_update_slice(x, update, start i64[rank]): x with the window at `start`, which is clamped
// so that the window fits, replaced by `update`. A dimension replaced whole is pass-through.

#include <algorithm>
#include <functional>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class DynamicUpdateSliceOp : public Op {
 public:
  std::string_view name() const override { return "dynamic_update_slice"; }
  int min_operands() const override { return 3; }
  InferredTypes InferTypes(const OpContext& context) const override {
    const TensorType& x = context.operands[0];
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    const TensorType start{DType::kI64, {static_cast<int64_t>(x.shape.size())}};
    RETURN_IF_ERROR(
        CheckOperandType(context, 2, start, "where each dimension of operand 0 starts"));
    const Shape& update = context.operands[1].shape;
    const bool fits =
        update.size() == x.shape.size() &&
        std::equal(update.begin(), update.end(), x.shape.begin(), std::less_equal<>());
    if (!fits) {
      return Invalid("the update ", Describe(context, 1), " does not fit ", Describe(context, 0));
    }
    return std::vector<TensorType>{x};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    std::vector<bool> is_cut;
    for (size_t i = 0; i < x.size(); ++i) is_cut.push_back(context.operands[1].shape[i] != x[i]);
    ShardingRule rule;
    const TensorFactors factors = AddTouched(rule, x, is_cut);
    rule.operands = {factors, factors,
                     AddFactors(rule, context.operands[2].shape, FactorKind::kNeedReplication)};
    rule.results = {factors};
    rule.linear = {{0, 1}};
    return rule;
  }
  PropagationPriority propagation_priority() const override {
    return PropagationPriority::kFirstForward;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId start = node.operands[2];
    const ValueId zeros = ZerosLike(builder, node.operands[1]);
    const ValueId dx = builder.Add("dynamic_update_slice", {grads[0], zeros, start});
    const Shape sizes = builder.type(node.operands[1]).shape;
    const ValueId update =
        builder.Add("dynamic_slice", {grads[0], start}, {{"sizes", AttrValue::Ints(sizes)}});
    return std::vector<ValueId>{dx, update, kNoValue};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeDynamicUpdateSlice() {
  return std::make_unique<DynamicUpdateSliceOp>();
}

}  // namespace penstock::graph::ops
