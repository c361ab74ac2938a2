// einsum_bias_gelu(x, w, b[b...]) {equation} -> y, [z]: z = einsum(x, w) + b and y = gelu(z), its
// tanh approximation, in one pass over memory. The gradient reads z.

#include "base/status_macros.h"
#include "graph/ops/equation.h"

namespace penstock::graph::ops {
namespace {

class EinsumBiasGeluOp : public Op {
 public:
  std::string_view name() const override { return "einsum_bias_gelu"; }
  int min_operands() const override { return 3; }
  int num_optional_results() const override { return 1; }
  int num_residuals() const override { return 1; }
  std::vector<AttrSpec> attributes() const override { return {kEquation}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    ASSIGN_OR_RETURN(std::vector<TensorType> types, InferBiasedProduct(context));
    types.push_back(types[0]);
    return types;
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = BiasedProductRule(context);
    if (context.results.size() > 1) rule.results.push_back(rule.results[0]);
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    ValueId dz = grads.size() > 1 ? grads[1] : kNoValue;
    if (grads[0] != kNoValue) {
      const ValueId through_gelu = builder.Add("gelu_grad", {node.results[1], grads[0]});
      dz = dz == kNoValue ? through_gelu : builder.Add("add", {through_gelu, dz});
    }
    return BiasedProductGradients(builder, node, dz);
  }
  OpCost Cost(const OpContext& context) const override {
    OpCost cost = CostOf(context, 16, context.results[0].num_elements());
    cost.flops += ProductFlops(context, EquationOf(context.attributes));
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEinsumBiasGelu() { return std::make_unique<EinsumBiasGeluOp>(); }

}  // namespace penstock::graph::ops
