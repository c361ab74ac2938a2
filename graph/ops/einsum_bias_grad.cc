// einsum_bias_grad(x, dy) {equation, dtype} -> dw, db: dw = einsum(x, dy), the gradient of a
// weight, and db, that of the bias beside it: the sum of dy over what the equation sums over.

#include "base/status_macros.h"
#include "graph/ops/equation.h"

namespace penstock::graph::ops {
namespace {

bool Has(std::string_view indices, char index) {
  return indices.find(index) != std::string_view::npos;
}

// The indices of db: those of dy that dw has, in the order of dy.
std::string BiasIndices(const Equation& equation) {
  std::string indices;
  for (char index : equation.operands[1]) {
    if (Has(equation.result, index)) indices += index;
  }
  return indices;
}

class EinsumBiasGradOp : public Op {
 public:
  std::string_view name() const override { return "einsum_bias_grad"; }
  int min_operands() const override { return 2; }
  int num_results(const OpContext&) const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return {kEquation, kSumDType}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    Equation equation;
    ASSIGN_OR_RETURN(const Shape shape, CheckFloatProduct(context, &equation));
    ASSIGN_OR_RETURN(const auto extents, IndexExtents(context, equation));
    for (const auto& [index, extent] : extents) {
      if (Has(equation.result, index) || Has(equation.operands[1], index)) continue;
      return Invalid("index '", std::string(1, index), "', which is summed over, is not in ",
                     Describe(context, 1));
    }
    Shape bias;
    for (char index : BiasIndices(equation)) bias.push_back(extents.at(index));
    ASSIGN_OR_RETURN(const DType dtype, SumDTypeOf(context));
    return std::vector<TensorType>{{dtype, shape}, {dtype, bias}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Equation equation = EquationOf(context.attributes);
    ShardingRule rule;
    const std::map<char, int> factors =
        AddProductFactors(context, equation, FactorKind::kReduction, &rule);
    rule.results.push_back(FactorsOf(factors, BiasIndices(equation)));
    // Every part of dw would make all of db.
    for (char index : equation.operands[0]) {
      if (Has(equation.result, index) && !Has(equation.operands[1], index)) {
        rule.factors[factors.at(index)].kind = FactorKind::kNeedReplication;
      }
    }
    rule.linear = {{1}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    OpCost cost = CostOf(context, 1, context.operands[1].num_elements());
    cost.flops += ProductFlops(context, EquationOf(context.attributes));
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEinsumBiasGrad() { return std::make_unique<EinsumBiasGradOp>(); }

}  // namespace penstock::graph::ops
