// slice(x) {start, limit, stride=1...}: elements start, start + stride, .. below limit of each
// dimension. A dimension taken whole is pass-through; of another, each element reads a window of
// one.

#include <algorithm>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

Shape StridesOf(const Attributes& attributes, size_t rank) {
  return attributes.Find("stride") != nullptr ? attributes.GetInts("stride") : Shape(rank, 1);
}

class SliceOp : public Op {
 public:
  std::string_view name() const override { return "slice"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"start", Kind::kInts, /*is_required=*/true},
            {"limit", Kind::kInts, /*is_required=*/true},
            {"stride", Kind::kInts}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckOneADimension(context, "start"));
    RETURN_IF_ERROR(CheckOneADimension(context, "limit"));
    if (context.attributes.Find("stride") != nullptr) {
      RETURN_IF_ERROR(CheckOneADimension(context, "stride"));
    }
    TensorType type = context.operands[0];
    const Shape start = context.attributes.GetInts("start");
    const Shape limit = context.attributes.GetInts("limit");
    const Shape stride = StridesOf(context.attributes, type.shape.size());
    for (size_t i = 0; i < type.shape.size(); ++i) {
      if (start[i] < 0 || start[i] > limit[i] || limit[i] > type.shape[i]) {
        return Invalid("the range ", start[i], " .. ", limit[i], " is not inside dimension ", i,
                       " of ", Describe(context, 0));
      }
      if (stride[i] < 1) return Invalid("stride ", stride[i], " of dimension ", i, " is below 1");
      const int64_t length = limit[i] - start[i];
      type.shape[i] = length > 0 ? (length - 1) / stride[i] + 1 : 0;
    }
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    std::vector<bool> is_cut;
    for (size_t i = 0; i < x.size(); ++i) is_cut.push_back(context.results[0].shape[i] != x[i]);
    ShardingRule rule;
    rule.operands = {AddTouched(rule, x, is_cut)};
    rule.results = rule.operands;
    rule.linear = {{0}};
    const Shape start = context.attributes.GetInts("start");
    const Shape stride = StridesOf(context.attributes, x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      if (!is_cut[i]) continue;
      rule.windows.push_back(
          {.operand = 0,
           .factor = rule.operands[0][i][0],
           .window = {
               .extent = context.results[0].shape[i], .stride = stride[i], .low = start[i]}});
    }
    return rule;
  }
  // A stride is undone by padding: [k] -> [k, 1] -> [k, stride] -> [k * stride], cut to what the
  // operand holds from start on, then padded to its place.
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const Shape x = builder.type(node.operands[0]).shape;
    const Shape y = builder.type(grads[0]).shape;
    const size_t rank = x.size();
    const Shape start = node.attributes.GetInts("start");
    const Shape stride = StridesOf(node.attributes, rank);
    ValueId dx = grads[0];
    Shape extent = y;
    if (stride != Shape(rank, 1)) {
      Shape pairs;
      Shape high;
      Shape spread;
      for (size_t i = 0; i < rank; ++i) {
        pairs.insert(pairs.end(), {y[i], 1});
        high.insert(high.end(), {0, stride[i] - 1});
        spread.push_back(y[i] * stride[i]);
        extent[i] = std::min(spread[i], x[i] - start[i]);
      }
      dx = builder.Add("reshape", {dx}, {{"shape", AttrValue::Ints(pairs)}});
      dx = builder.Add(
          "pad", {dx},
          {{"low", AttrValue::Ints(Shape(2 * rank, 0))}, {"high", AttrValue::Ints(high)}});
      dx = builder.Add("reshape", {dx}, {{"shape", AttrValue::Ints(spread)}});
      dx = builder.Add(
          "slice", {dx},
          {{"start", AttrValue::Ints(Shape(rank, 0))}, {"limit", AttrValue::Ints(extent)}});
    }
    Shape high;
    for (size_t i = 0; i < rank; ++i) high.push_back(x[i] - start[i] - extent[i]);
    return std::vector<ValueId>{builder.Add(
        "pad", {dx}, {{"low", AttrValue::Ints(start)}, {"high", AttrValue::Ints(high)}})};
  }
  OpCost Cost(const OpContext& context) const override {
    return {.flops = 0, .bytes = 2.0 * context.results[0].num_bytes()};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeSlice() { return std::make_unique<SliceOp>(); }

}  // namespace penstock::graph::ops
