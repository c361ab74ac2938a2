// dynamic_slice(x, start i64[rank]) {sizes}: the window of `sizes` at `start`, which is clamped so
// that the window fits. A dimension taken whole is pass-through.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class DynamicSliceOp : public Op {
 public:
  std::string_view name() const override { return "dynamic_slice"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"sizes", Kind::kInts, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckOneADimension(context, "sizes"));
    TensorType type = context.operands[0];
    const int64_t rank = static_cast<int64_t>(type.shape.size());
    const TensorType start{DType::kI64, {rank}};
    RETURN_IF_ERROR(
        CheckOperandType(context, 1, start, "where each dimension of operand 0 starts"));
    const Shape sizes = context.attributes.GetInts("sizes");
    for (int64_t i = 0; i < rank; ++i) {
      if (sizes[i] < 0 || sizes[i] > type.shape[i]) {
        return Invalid("size ", sizes[i], " does not fit dimension ", i, " of ",
                       Describe(context, 0));
      }
    }
    type.shape = sizes;
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    std::vector<bool> is_cut;
    for (size_t i = 0; i < x.size(); ++i) is_cut.push_back(context.results[0].shape[i] != x[i]);
    ShardingRule rule;
    const TensorFactors factors = AddTouched(rule, x, is_cut);
    rule.operands = {factors,
                     AddFactors(rule, context.operands[1].shape, FactorKind::kNeedReplication)};
    rule.results = {factors};
    rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override {
    return PropagationPriority::kFirstForward;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId zeros = ZerosLike(builder, node.operands[0]);
    return std::vector<ValueId>{
        builder.Add("dynamic_update_slice", {zeros, grads[0], node.operands[1]}), kNoValue};
  }
  OpCost Cost(const OpContext& context) const override {
    return {.flops = 0,
            .bytes = 2.0 * context.results[0].num_bytes() + context.operands[1].num_bytes()};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeDynamicSlice() { return std::make_unique<DynamicSliceOp>(); }

}  // namespace penstock::graph::ops
