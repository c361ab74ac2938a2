// broadcast(x) {shape, axes}: x repeated; its dimension i becomes dimension axes[i] of the result.
// The other dimensions are factors that appear in the result alone.

#include <algorithm>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class BroadcastOp : public Op {
 public:
  std::string_view name() const override { return "broadcast"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"shape", Kind::kInts, /*is_required=*/true},
            {"axes", Kind::kInts, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckOneADimension(context, "axes"));
    const Shape shape = context.attributes.GetInts("shape");
    const Shape axes = context.attributes.GetInts("axes");
    std::vector<bool> is_used(shape.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] < 0 || axes[i] >= static_cast<int64_t>(shape.size())) {
        return Invalid("axis ", axes[i], " is outside the shape ", penstock::ToString(shape));
      }
      if (is_used[axes[i]]) return Invalid("axis ", axes[i], " is given twice");
      is_used[axes[i]] = true;
      if (shape[axes[i]] != context.operands[0].shape[i]) {
        return Invalid("dimension ", i, " of ", Describe(context, 0), " becomes dimension ",
                       axes[i], " of ", penstock::ToString(shape), ", which has another extent");
      }
    }
    return std::vector<TensorType>{{context.operands[0].dtype, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    rule.results = {AddFactors(rule, context.results[0].shape)};
    rule.operands.emplace_back();
    for (int64_t axis : context.attributes.GetInts("axes")) {
      rule.operands[0].push_back(rule.results[0][axis]);
    }
    rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kLast; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const Shape axes = node.attributes.GetInts("axes");
    std::vector<int64_t> added;
    Shape kept;  // axes in the order in which the sum leaves them
    for (int64_t i = 0; i < static_cast<int64_t>(builder.type(grads[0]).shape.size()); ++i) {
      const bool is_kept = std::find(axes.begin(), axes.end(), i) != axes.end();
      (is_kept ? kept.push_back(i) : added.push_back(i));
    }
    ValueId dx = grads[0];
    if (!added.empty()) dx = builder.Add("reduce_sum", {dx}, {{"axes", AttrValue::Ints(added)}});
    if (kept != axes) {
      std::vector<int64_t> permutation;
      for (int64_t axis : axes) {
        permutation.push_back(std::find(kept.begin(), kept.end(), axis) - kept.begin());
      }
      dx = builder.Add("transpose", {dx}, {{"permutation", AttrValue::Ints(permutation)}});
    }
    return std::vector<ValueId>{dx};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBroadcast() { return std::make_unique<BroadcastOp>(); }

}  // namespace penstock::graph::ops
