// concat(x0, x1, ...) {axis}: the operands one after another along the axis, of each of which an
// element of the result reads a window: one element, or none.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class ConcatOp : public Op {
 public:
  std::string_view name() const override { return "concat"; }
  int min_operands() const override { return 1; }
  int max_operands() const override { return -1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"axis", Kind::kInt, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    TensorType type = context.operands[0];
    ASSIGN_OR_RETURN(const int axis,
                     NormalizeOperandAxis(context, context.attributes.GetInt("axis", 0)));
    for (int i = 1; i < static_cast<int>(context.operands.size()); ++i) {
      RETURN_IF_ERROR(CheckSameDType(context, i, 0));
      Shape expected = context.operands[0].shape;
      if (context.operands[i].shape.size() == expected.size()) {
        expected[axis] = context.operands[i].shape[axis];
      }
      RETURN_IF_ERROR(
          CheckOperandShape(context, i, expected, StrCat("that of operand 0 but for axis ", axis)));
      type.shape[axis] += expected[axis];
      RETURN_IF_ERROR(CheckShape(type.shape));  // before the sum overflows
    }
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& y = context.results[0].shape;
    std::vector<bool> is_joined(y.size());
    is_joined[AxisOf(context.attributes, 0, static_cast<int>(y.size()))] =
        context.operands.size() > 1;
    ShardingRule rule;
    rule.results = {AddTouched(rule, y, is_joined)};
    rule.operands.assign(context.operands.size(), rule.results[0]);
    rule.linear.emplace_back();
    const auto axis =
        static_cast<size_t>(AxisOf(context.attributes, 0, static_cast<int>(y.size())));
    int64_t start = 0;
    for (size_t i = 0; i < context.operands.size(); ++i) {
      rule.linear[0].push_back(static_cast<int>(i));
      if (!is_joined[axis]) continue;
      rule.windows.push_back({.operand = static_cast<int>(i),
                              .factor = rule.results[0][axis][0],
                              .window = {.extent = y[axis], .low = -start}});
      start += context.operands[i].shape[axis];
    }
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    Shape limit = builder.type(grads[0]).shape;
    Shape start(limit.size(), 0);
    const int axis = AxisOf(node.attributes, 0, static_cast<int>(limit.size()));
    limit[axis] = 0;
    std::vector<ValueId> gradients;
    for (ValueId operand : node.operands) {
      start[axis] = limit[axis];
      limit[axis] += builder.type(operand).shape[axis];
      gradients.push_back(
          builder.Add("slice", {grads[0]},
                      {{"start", AttrValue::Ints(start)}, {"limit", AttrValue::Ints(limit)}}));
    }
    return gradients;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeConcat() { return std::make_unique<ConcatOp>(); }

}  // namespace penstock::graph::ops
