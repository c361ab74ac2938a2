// pad(x) {low, high}: zeros added before and after each dimension. A dimension left alone is
// pass-through; of another, each element reads a window of one, which may hold nothing.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class PadOp : public Op {
 public:
  std::string_view name() const override { return "pad"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"low", Kind::kInts, /*is_required=*/true},
            {"high", Kind::kInts, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckOneADimension(context, "low"));
    RETURN_IF_ERROR(CheckOneADimension(context, "high"));
    TensorType type = context.operands[0];
    const Shape low = context.attributes.GetInts("low");
    const Shape high = context.attributes.GetInts("high");
    for (size_t i = 0; i < type.shape.size(); ++i) {
      constexpr int64_t kMaxPadding = int64_t{1} << 48;
      if (low[i] < 0 || high[i] < 0 || low[i] > kMaxPadding || high[i] > kMaxPadding) {
        return Invalid("the padding ", low[i], ", ", high[i], " of dimension ", i,
                       " is negative or too large");
      }
      type.shape[i] += low[i] + high[i];
    }
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& y = context.results[0].shape;
    std::vector<bool> is_padded;
    for (size_t i = 0; i < y.size(); ++i) {
      is_padded.push_back(context.operands[0].shape[i] != y[i]);
    }
    ShardingRule rule;
    rule.operands = {AddTouched(rule, y, is_padded)};
    rule.results = rule.operands;
    rule.linear = {{0}};
    const Shape low = context.attributes.GetInts("low");
    for (size_t i = 0; i < y.size(); ++i) {
      if (!is_padded[i]) continue;
      rule.windows.push_back({.operand = 0,
                              .factor = rule.operands[0][i][0],
                              .window = {.extent = y[i], .low = -low[i]}});
    }
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const Shape low = node.attributes.GetInts("low");
    Shape limit = builder.type(node.operands[0]).shape;
    for (size_t i = 0; i < limit.size(); ++i) limit[i] += low[i];
    return std::vector<ValueId>{builder.Add(
        "slice", {grads[0]}, {{"start", AttrValue::Ints(low)}, {"limit", AttrValue::Ints(limit)}})};
  }
};

}  // namespace

std::unique_ptr<const Op> MakePad() { return std::make_unique<PadOp>(); }

}  // namespace penstock::graph::ops
