// einsum_bias(x, w, b[b...]) {equation}: einsum(x, w) + b in one pass over memory; the shape of b
// is the end of the result's.

#include "graph/ops/equation.h"

namespace penstock::graph::ops {
namespace {

class EinsumBiasOp : public Op {
 public:
  std::string_view name() const override { return "einsum_bias"; }
  int min_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return {kEquation}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    return InferBiasedProduct(context);
  }
  ShardingRule Rule(const OpContext& context) const override { return BiasedProductRule(context); }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    return BiasedProductGradients(builder, node, grads[0]);
  }
  OpCost Cost(const OpContext& context) const override {
    OpCost cost = CostOf(context, 1, context.results[0].num_elements());
    cost.flops += ProductFlops(context, EquationOf(context.attributes));
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEinsumBias() { return std::make_unique<EinsumBiasOp>(); }

}  // namespace penstock::graph::ops
