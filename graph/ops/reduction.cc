#include "graph/ops/reduction.h"

#include <algorithm>

#include "base/status_macros.h"

namespace penstock::graph::ops {
namespace {

class ReductionOp : public Op {
 public:
  explicit ReductionOp(ReductionDef def) : def_(def) {}
  std::string_view name() const override { return def_.name; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    std::vector<AttrSpec> specs = {{"axes", Kind::kInts, /*is_required=*/true},
                                   {"keepdims", Kind::kBool}};
    if (def_.reduction == Reduction::kSum) specs.push_back(kSumDType);
    return specs;
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    const TensorType& x = context.operands[0];
    RETURN_IF_ERROR(def_.takes_integers ? CheckNumber(context, 0) : CheckFloat(context, 0));
    const int rank = static_cast<int>(x.shape.size());
    std::vector<bool> is_reduced(rank);
    for (int64_t given : context.attributes.GetInts("axes")) {
      ASSIGN_OR_RETURN(const int axis, NormalizeOperandAxis(context, given));
      if (is_reduced[axis]) return Invalid("axis ", axis, " is given twice");
      is_reduced[axis] = true;
    }
    ASSIGN_OR_RETURN(const DType dtype, SumDTypeOf(context));
    TensorType type{dtype, {}};
    for (int i = 0; i < rank; ++i) {
      if (!is_reduced[i]) {
        type.shape.push_back(x.shape[i]);
      } else if (context.attributes.GetBool("keepdims", false)) {
        type.shape.push_back(1);
      }
    }
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    const std::vector<int64_t> axes = ReducedAxes(context.attributes, static_cast<int>(x.size()));
    ShardingRule rule;
    TensorFactors y;
    for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
      if (!std::binary_search(axes.begin(), axes.end(), i)) {
        y.push_back({rule.AddFactor(x[i])});
        continue;
      }
      rule.AddFactor(x[i], FactorKind::kReduction, def_.reduction);
      if (context.attributes.GetBool("keepdims", false)) y.emplace_back();
    }
    rule.operands.emplace_back();
    for (int i = 0; i < static_cast<int>(x.size()); ++i) rule.operands[0].push_back({i});
    rule.results = {y};
    if (def_.is_linear) rule.linear = {{0}};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    if (!builder.status().ok()) return builder.status();
    const DType dtype = builder.type(node.operands[0]).dtype;
    return std::vector<ValueId>{def_.gradient(builder, node, CastTo(builder, grads[0], dtype))};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 1, context.operands[0].num_elements());
  }

 private:
  const ReductionDef def_;
};

}  // namespace

std::unique_ptr<const Op> MakeReduction(ReductionDef def) {
  return std::make_unique<ReductionOp>(def);
}

std::vector<int64_t> ReducedAxes(const Attributes& attributes, int rank) {
  std::vector<int64_t> axes;
  for (int64_t axis : attributes.GetInts("axes")) axes.push_back(axis < 0 ? axis + rank : axis);
  std::sort(axes.begin(), axes.end());
  return axes;
}

ValueId BroadcastReduced(GraphBuilder& builder, const Node& node, ValueId value) {
  if (!builder.status().ok()) return kNoValue;
  const Shape x = builder.type(node.operands[0]).shape;
  const std::vector<int64_t> axes = ReducedAxes(node.attributes, static_cast<int>(x.size()));
  if (node.attributes.GetBool("keepdims", false)) {
    Shape kept;
    for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
      if (!std::binary_search(axes.begin(), axes.end(), i)) kept.push_back(x[i]);
    }
    value = builder.Add("reshape", {value}, {{"shape", AttrValue::Ints(kept)}});
  }
  return BroadcastLike(builder, value, node.operands[0], axes);
}

}  // namespace penstock::graph::ops
