// einsum_gelu_grad(dy, w, z) {equation}: einsum(dy, w) times the gradient of gelu (its tanh
// approximation) at z, which has the type of the product.

#include "base/status_macros.h"
#include "graph/ops/equation.h"

namespace penstock::graph::ops {
namespace {

class EinsumGeluGradOp : public Op {
 public:
  std::string_view name() const override { return "einsum_gelu_grad"; }
  int min_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return {kEquation}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    Equation equation;
    ASSIGN_OR_RETURN(const Shape shape, CheckFloatProduct(context, &equation));
    const TensorType type = {context.operands[0].dtype, shape};
    RETURN_IF_ERROR(
        CheckOperandType(context, 2, type, "the type of the product of operand 0 and operand 1"));
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    // Each part of a sum would be multiplied.
    AddProductFactors(context, EquationOf(context.attributes), FactorKind::kNeedReplication, &rule);
    rule.operands.push_back(rule.results[0]);
    rule.linear = {{0}, {1}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    OpCost cost = CostOf(context, 20, context.results[0].num_elements());
    cost.flops += ProductFlops(context, EquationOf(context.attributes));
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEinsumGeluGrad() { return std::make_unique<EinsumGeluGradOp>(); }

}  // namespace penstock::graph::ops
