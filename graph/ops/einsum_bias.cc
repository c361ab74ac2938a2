// einsum_bias(x, w, b[b...][, r]) {equation}: einsum(x, w) + b + r in one pass over memory; the
// shape of b is the end of the result's, or all of it, and r has the result's type.

#include "base/status_macros.h"
#include "graph/ops/equation.h"

namespace penstock::graph::ops {
namespace {

class EinsumBiasOp : public Op {
 public:
  std::string_view name() const override { return "einsum_bias"; }
  int min_operands() const override { return 3; }
  int max_operands() const override { return 4; }
  std::vector<AttrSpec> attributes() const override { return {kEquation}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    ASSIGN_OR_RETURN(std::vector<TensorType> types, InferBiasedProduct(context));
    if (context.operands.size() > 3) {
      RETURN_IF_ERROR(CheckOperandType(context, 3, types[0],
                                       "the type of the product of operand 0 and operand 1"));
    }
    return types;
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = BiasedProductRule(context);
    if (context.operands.size() > 3) rule.operands.push_back(rule.results[0]);
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    ASSIGN_OR_RETURN(std::vector<ValueId> gradients,
                     BiasedProductGradients(builder, node, grads[0]));
    if (node.operands.size() > 3) gradients.push_back(grads[0]);
    return gradients;
  }
  OpCost Cost(const OpContext& context) const override {
    OpCost cost = CostOf(context, static_cast<double>(context.operands.size() - 2),
                         context.results[0].num_elements());
    cost.flops += ProductFlops(context, EquationOf(context.attributes));
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEinsumBias() { return std::make_unique<EinsumBiasOp>(); }

}  // namespace penstock::graph::ops
