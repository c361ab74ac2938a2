// pick(x[..., n], index i[...]): x[..., index], 0 where the index lies outside the tile, so that
// the parts of a split n add up.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class PickOp : public Op {
 public:
  std::string_view name() const override { return "pick"; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNumber(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckInteger(context, 1));
    const Shape shape = WithoutLast(context.operands[0].shape);
    RETURN_IF_ERROR(
        CheckOperandShape(context, 1, shape, "that of operand 0 but for the last axis"));
    return std::vector<TensorType>{{context.operands[0].dtype, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = LastDimensionRule(context, FactorKind::kReduction);
    rule.linear = {{0}};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId x = node.operands[0];
    ValueId index = node.operands[1];
    const Shape shape = builder.type(x).shape;
    const int64_t last = static_cast<int64_t>(shape.size()) - 1;
    // Places may be more than a short index type tells apart.
    DType dtype = builder.type(index).dtype;
    if (ByteSize(dtype) == 1) {
      dtype = DType::kI32;
      index = builder.Add("cast", {index}, {{"dtype", dtype}});
    }
    const ValueId place = builder.Add(
        "iota", {}, {{"axis", last}, {"shape", AttrValue::Ints(shape)}, {"dtype", dtype}});
    const ValueId is_picked =
        builder.Add("equal", {place, BroadcastLike(builder, index, x, {last})});
    const ValueId dy = BroadcastLike(builder, grads[0], x, {last});
    const ValueId dx = builder.Add("where", {is_picked, dy, ScalarLike(builder, dy, 0)});
    return std::vector<ValueId>{dx, kNoValue};
  }
  OpCost Cost(const OpContext& context) const override {
    return {.flops = 0,
            .bytes = 2.0 * context.results[0].num_bytes() + context.operands[1].num_bytes()};
  }
};

}  // namespace

std::unique_ptr<const Op> MakePick() { return std::make_unique<PickOp>(); }

}  // namespace penstock::graph::ops
