// What the operators share that have einsum's equation: parsing and checking it, sharding, costs
// and gradients of the product.
//
// Thread rule: pure functions, but for those that take a GraphBuilder, which belongs to one thread.

#ifndef PENSTOCK_GRAPH_OPS_EQUATION_H_
#define PENSTOCK_GRAPH_OPS_EQUATION_H_

#include <string>
#include <vector>

#include "graph/ops/common.h"

namespace penstock::graph::ops {

// "bmk,bkn->bmn": an index is a letter; one that the result lacks is summed over.
struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

inline constexpr AttrSpec kEquation = {"equation", AttrSpec::Kind::kString, /*is_required=*/true};

absl::StatusOr<Equation> ParseEquation(const Attributes& attributes);
// REQUIRES: the equation was checked when the node was built.
Equation EquationOf(const Attributes& attributes);

// The shape of the product of the first operands, which `equation` names. An error where their
// types do not fit it.
absl::StatusOr<Shape> CheckProduct(const OpContext& context, const Equation& equation);

// The same, for an equation of two operands, which are floats; `equation` receives it.
absl::StatusOr<Shape> CheckFloatProduct(const OpContext& context, Equation* equation);

// A factor an index: pass-through, or `summed` where the result lacks it. `rule` receives the
// factors and the dimensions of the operands of the equation and of its result.
void AddProductFactors(const OpContext& context, const Equation& equation, FactorKind summed,
                       ShardingRule* rule);

// Of the product alone: an operation at every point of the index space, and one more where an index
// is summed over.
double ProductFlops(const OpContext& context, const Equation& equation);

// The gradient of each operand of the equation from that of the product, `dz`.
Values ProductGradients(GraphBuilder& builder, const Equation& equation,
                        absl::Span<const ValueId> operands, ValueId dz);

// ---- Products with a bias, of x, w and b. The shape of b is the end of the result's.

// One result, which is checked with the operands.
InferredTypes InferBiasedProduct(const OpContext& context);

// Of the first result. Sums are whole before the bias is added: what is summed over is not split.
ShardingRule BiasedProductRule(const OpContext& context);

// The gradients of x, w and b from that of the product with its bias.
Values BiasedProductGradients(GraphBuilder& builder, const Node& node, ValueId dz);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_EQUATION_H_
