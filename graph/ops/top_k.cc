// top_k(x[..., n]) {k} -> values[..., k], indices i64[..., k]: the k largest elements of each row,
// the largest first and of equal ones the first in the row. The gradient goes back to the places
// that the values came from: a dispatch of k rows of one element to the n places of one expert.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

int64_t NumChosen(const OpContext& context) { return context.attributes.GetInt("k", 1); }

class TopKOp : public Op {
 public:
  std::string_view name() const override { return "top_k"; }
  int min_operands() const override { return 1; }
  int num_results(const OpContext&) const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"k", Kind::kInt, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    Shape shape = context.operands[0].shape;
    const int64_t k = NumChosen(context);
    if (k < 1 || k > shape.back()) {
      return Invalid("k = ", k, " should lie between 1 and the last extent of ",
                     Describe(context, 0));
    }
    shape.back() = k;
    return std::vector<TensorType>{{context.operands[0].dtype, shape}, {DType::kI64, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const Shape& shape = context.operands[0].shape;
    const TensorFactors rows = AddFactors(rule, WithoutLast(shape));
    const int n = rule.AddFactor(shape.back(), FactorKind::kNeedReplication);
    const int k = rule.AddFactor(NumChosen(context), FactorKind::kNeedReplication);
    rule.operands = {rows};
    rule.operands[0].push_back({n});
    rule.results.assign(context.results.size(), rows);
    for (TensorFactors& result : rule.results) result.push_back({k});
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const Shape x = builder.type(node.operands[0]).shape;
    Shape rows = builder.type(grads[0]).shape;
    rows.push_back(1);
    const Attributes as_rows = {{"shape", AttrValue::Ints(rows)}};
    const ValueId dy = builder.Add("reshape", {grads[0]}, as_rows);
    const ValueId slots = builder.Add("reshape", {node.results[1]}, as_rows);
    const ValueId dx =
        builder.Add("dispatch", {dy, slots}, {{"experts", int64_t{1}}, {"capacity", x.back()}});
    return std::vector<ValueId>{builder.Add("reshape", {dx}, {{"shape", AttrValue::Ints(x)}})};
  }
  OpCost Cost(const OpContext& context) const override {
    // A comparison with every element for each that is chosen.
    return CostOf(context, static_cast<double>(NumChosen(context)),
                  context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeTopK() { return std::make_unique<TopKOp>(); }

}  // namespace penstock::graph::ops
