// cast(x) {dtype}: x converted. Floats round to nearest even; float to integer truncates. A
// widening of floats is exact, so that partial sums pass through it. The cast of a parameter
// may have the attribute `per_use`: each phase that reads it gathers it for itself (identity.h).

#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class CastOp : public Op {
 public:
  std::string_view name() const override { return "cast"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"dtype", Kind::kDType, /*is_required=*/true}, {"per_use", Kind::kBool}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    return std::vector<TensorType>{
        {context.attributes.GetDType("dtype", DType::kF32), context.operands[0].shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    const DType from = context.operands[0].dtype;
    const DType to = context.results[0].dtype;
    const bool is_exact =
        from == to || (IsFloat(from) && IsFloat(to) && ByteSize(to) > ByteSize(from));
    if (is_exact) rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const DType dtype = builder.type(node.operands[0]).dtype;
    return std::vector<ValueId>{builder.Add("cast", {grads[0]}, {{"dtype", dtype}})};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 1, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCast() { return std::make_unique<CastOp>(); }

}  // namespace penstock::graph::ops
