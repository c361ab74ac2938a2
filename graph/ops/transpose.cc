// transpose(x) {permutation}: dimension i of the result is dimension permutation[i] of x.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

absl::Status CheckPermutation(const Shape& permutation) {
  std::vector<bool> is_used(permutation.size());
  for (int64_t axis : permutation) {
    if (axis < 0 || axis >= static_cast<int64_t>(permutation.size()) || is_used[axis]) {
      return Invalid(penstock::ToString(permutation), " is not a permutation of 0 .. ",
                     permutation.size() - 1);
    }
    is_used[axis] = true;
  }
  return absl::OkStatus();
}

class TransposeOp : public Op {
 public:
  std::string_view name() const override { return "transpose"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"permutation", Kind::kInts, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckOneADimension(context, "permutation"));
    const Shape permutation = context.attributes.GetInts("permutation");
    RETURN_IF_ERROR(CheckPermutation(permutation));
    TensorType type = context.operands[0];
    for (size_t i = 0; i < permutation.size(); ++i) {
      type.shape[i] = context.operands[0].shape[permutation[i]];
    }
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    rule.operands = {AddFactors(rule, context.operands[0].shape)};
    rule.results.emplace_back();
    for (int64_t axis : context.attributes.GetInts("permutation")) {
      rule.results[0].push_back(rule.operands[0][axis]);
    }
    rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const Shape permutation = node.attributes.GetInts("permutation");
    Shape inverse(permutation.size());
    for (size_t i = 0; i < permutation.size(); ++i) inverse[permutation[i]] = i;
    return std::vector<ValueId>{
        builder.Add("transpose", {grads[0]}, {{"permutation", AttrValue::Ints(inverse)}})};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeTranspose() { return std::make_unique<TransposeOp>(); }

}  // namespace penstock::graph::ops
