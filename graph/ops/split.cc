// split(x) {axis, parts}: `parts` equal pieces along the axis, one a result.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class SplitOp : public Op {
 public:
  std::string_view name() const override { return "split"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"axis", Kind::kInt, /*is_required=*/true},
            {"parts", Kind::kInt, /*is_required=*/true}};
  }
  int num_results(const OpContext& context) const override {
    return static_cast<int>(context.attributes.GetInt("parts", 1));
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    TensorType type = context.operands[0];
    ASSIGN_OR_RETURN(const int axis,
                     NormalizeOperandAxis(context, context.attributes.GetInt("axis", 0)));
    constexpr int64_t kMaxParts = 1 << 16;
    const int64_t parts = context.attributes.GetInt("parts", 1);
    if (parts < 1 || parts > kMaxParts || type.shape[axis] % parts != 0) {
      return Invalid("dimension ", axis, " of ", Describe(context, 0), " does not split into ",
                     parts, " equal parts");
    }
    type.shape[axis] /= parts;
    return std::vector<TensorType>(parts, type);
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    std::vector<bool> is_cut(x.size());
    is_cut[AxisOf(context.attributes, 0, static_cast<int>(x.size()))] = context.results.size() > 1;
    ShardingRule rule;
    rule.operands = {AddTouched(rule, x, is_cut)};
    rule.results.assign(context.results.size(), rule.operands[0]);
    rule.linear = {{0}};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    std::vector<ValueId> parts(grads.begin(), grads.end());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] == kNoValue) parts[i] = ZerosLike(builder, node.results[i]);
    }
    return std::vector<ValueId>{
        builder.Add("concat", parts, {{"axis", node.attributes.GetInt("axis", 0)}})};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeSplit() { return std::make_unique<SplitOp>(); }

}  // namespace penstock::graph::ops
