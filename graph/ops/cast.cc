// cast(x) {dtype, partial_sums}: x converted. Floats round to nearest even; float to integer
// truncates. A widening of floats is exact, so that partial sums pass through it. The cast of a
// parameter may have the attribute `per_use`: each phase that reads it gathers it for itself
// (identity.h).
//
// partial_sums="round": partial sums of floats pass though they are rounded, so that devices add
// them up in the result's type. partial_sums="add": they are added up before the cast.

#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class CastOp : public Op {
 public:
  std::string_view name() const override { return "cast"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"dtype", Kind::kDType, /*is_required=*/true},
            {"per_use", Kind::kBool},
            {"partial_sums", Kind::kString}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    const std::string partial_sums = PartialSums(context);
    if (!partial_sums.empty() && partial_sums != "round" && partial_sums != "add") {
      return Invalid("partial_sums is \"round\" or \"add\", not \"", partial_sums, "\"");
    }
    return std::vector<TensorType>{
        {context.attributes.GetDType("dtype", DType::kF32), context.operands[0].shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    const DType from = context.operands[0].dtype;
    const DType to = context.results[0].dtype;
    const std::string partial_sums = PartialSums(context);
    const bool are_floats = IsFloat(from) && IsFloat(to);
    const bool is_exact = from == to || (are_floats && ByteSize(to) > ByteSize(from));
    if ((is_exact && partial_sums != "add") || (are_floats && partial_sums == "round")) {
      rule.linear = {{0}};
    }
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

 private:
  static std::string PartialSums(const OpContext& context) {
    return context.attributes.GetString("partial_sums", "");
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCast() { return std::make_unique<CastOp>(); }

}  // namespace penstock::graph::ops
