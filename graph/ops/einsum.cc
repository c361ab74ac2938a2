// einsum(x[, y]) {equation, dtype}: a sum of products, "bmk,bkn->bmn". An index is a letter; one
// that the result lacks is summed over. No ellipsis, no index twice in one operand.

#include "base/status_macros.h"
#include "graph/ops/equation.h"

namespace penstock::graph::ops {
namespace {

class EinsumOp : public Op {
 public:
  std::string_view name() const override { return "einsum"; }
  int min_operands() const override { return 1; }
  int max_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return {kEquation, kSumDType}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    ASSIGN_OR_RETURN(const Equation equation, ParseEquation(context.attributes));
    if (equation.operands.size() != context.operands.size()) {
      return Invalid("the equation is for ", equation.operands.size(), " operands, not ",
                     context.operands.size());
    }
    ASSIGN_OR_RETURN(Shape shape, CheckProduct(context, equation));
    ASSIGN_OR_RETURN(const DType dtype, SumDTypeOf(context));
    return std::vector<TensorType>{{dtype, std::move(shape)}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    AddProductFactors(context, EquationOf(context.attributes), FactorKind::kReduction, &rule);
    for (size_t i = 0; i < rule.operands.size(); ++i) rule.linear.push_back({static_cast<int>(i)});
    return rule;
  }
  // d(operand) is the einsum of dz and the other operand.
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    if (!builder.status().ok()) return builder.status();
    const ValueId dz = CastTo(builder, grads[0], builder.type(node.operands[0]).dtype);
    return ProductGradients(builder, EquationOf(node.attributes), node.operands, dz);
  }
  OpCost Cost(const OpContext& context) const override {
    OpCost cost = CostOf(context, 0, 0);
    cost.flops = ProductFlops(context, EquationOf(context.attributes));
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEinsum() { return std::make_unique<EinsumOp>(); }

}  // namespace penstock::graph::ops
