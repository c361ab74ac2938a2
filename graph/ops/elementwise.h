// The families of elementwise operators: one function of one operand, of two, and comparisons. The
// file of an operator says what differs.
//
// Thread rule: as Op.

#ifndef PENSTOCK_GRAPH_OPS_ELEMENTWISE_H_
#define PENSTOCK_GRAPH_OPS_ELEMENTWISE_H_

#include <memory>
#include <string_view>
#include <vector>

#include "graph/ops/common.h"

namespace penstock::graph::ops {

struct UnaryDef {
  std::string_view name;
  double flops = 1;  // an element
  // dx of the node, given dy.
  ValueId (*gradient)(GraphBuilder& builder, const Node& node, ValueId dy) = nullptr;
  bool takes_integers = false;
  bool is_linear = false;
  bool has_approximate = false;  // the attribute of gelu
};
std::unique_ptr<const Op> MakeUnary(UnaryDef def);

// Equal shapes and dtypes, or one operand a scalar.
struct BinaryDef {
  std::string_view name;
  double flops = 1;
  // {dx, dy} of the node with the result's shape, given the result's gradient; the family sums them
  // to a scalar operand.
  std::vector<ValueId> (*gradient)(GraphBuilder& builder, const Node& node, ValueId dz) = nullptr;
  std::vector<std::vector<int>> linear = {};
  bool rounds_integers = false;  // `linear` holds for floats only
  OpRole role = OpRole::kCompute;
};
std::unique_ptr<const Op> MakeBinary(BinaryDef def);

// As a binary operator, with a bool result and no gradient.
std::unique_ptr<const Op> MakeComparison(std::string_view name);

// The shape of elementwise operands, scalars aside. An error where they differ.
absl::StatusOr<Shape> CommonShape(const OpContext& context);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_ELEMENTWISE_H_
