#include "planner/cost/kernel_cost.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

using Tiles = std::vector<TilePlan>;

std::vector<TensorType> TypesOf(const Tiles& tiles, Shape TilePlan::*shape) {
  std::vector<TensorType> types;
  for (const TilePlan& tile : tiles) types.push_back({tile.dtype, tile.*shape});
  return types;
}

// Of the factors that every kernel needs equally long in all tiles. Parts of others roll, come in
// windows, or are joined with others in one dimension.
absl::Status CheckExtents(const graph::ShardingRule& rule, const KernelPlan& spec) {
  std::vector<int64_t> extents(rule.factors.size(), -1);
  for (const auto& [tiles, all_factors] :
       {std::pair(&spec.inputs, &rule.operands), std::pair(&spec.outputs, &rule.results)}) {
    for (size_t i = 0; i < std::min(tiles->size(), all_factors->size()); ++i) {
      const graph::TensorFactors& factors = (*all_factors)[i];
      const Shape& shape = (*tiles)[i].shape;
      for (size_t d = 0; d < std::min<size_t>(shape.size(), factors.size()); ++d) {
        if (factors[d].size() != 1) continue;
        const int factor = factors[d][0];
        const graph::FactorKind kind = rule.factors[factor].kind;
        if (kind != graph::FactorKind::kPassThrough && kind != graph::FactorKind::kReduction) {
          continue;
        }
        if (extents[factor] < 0) extents[factor] = shape[d];
        if (extents[factor] == shape[d]) continue;
        return absl::InvalidArgumentError(
            StrCat("dimension ", d, " of ", tiles == &spec.inputs ? "input " : "output ", i,
                   " has ", shape[d], " elements where another tile has ", extents[factor]));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTiles(const graph::Op& op, const KernelPlan& spec) {
  if (spec.outputs.empty()) return absl::InvalidArgumentError("it has no output");
  // What is made from nothing depends on no operand, and declares its type.
  if (spec.inputs.empty() && op.min_operands() == 0) return absl::OkStatus();
  const std::vector<TensorType> operands = TypesOf(spec.inputs, &TilePlan::global);
  const std::vector<TensorType> results = TypesOf(spec.outputs, &TilePlan::global);
  ASSIGN_OR_RETURN(const std::vector<TensorType> expected,
                   graph::InferResultTypes(op, spec.attributes, operands));
  if (results.size() > expected.size()) {
    return absl::InvalidArgumentError(
        StrCat("it has ", results.size(), " outputs, expected ", expected.size()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].shape == expected[i].shape) continue;
    return absl::InvalidArgumentError(StrCat("output ", i, " is of ", ToString(results[i]),
                                             ", expected ", ToString(expected[i])));
  }
  // A redistribution changes what the device holds of the tensor.
  if (graph::IsRedistribution(op.role())) return absl::OkStatus();
  return CheckExtents(op.Rule({spec.attributes, operands, results}), spec);
}

}  // namespace

absl::Status CheckKernelTiles(const graph::OpRegistry& ops,
                              const std::vector<KernelPlan>& kernels) {
  for (size_t k = 0; k < kernels.size(); ++k) {
    const graph::Op* op = ops.Find(kernels[k].op);
    absl::Status checked;
    if (op != nullptr) {
      checked = CheckTiles(*op, kernels[k]);
    } else if (kernels[k].op == "pack" && kernels[k].outputs.empty()) {
      checked = absl::InvalidArgumentError("it has no output");
    }
    if (checked.ok()) continue;
    return absl::InvalidArgumentError(StrCat(
        "kernel ", k, " '", kernels[k].op, "' does not fit its tiles: ", ToStd(checked.message())));
  }
  return absl::OkStatus();
}

graph::OpCost KernelCost(const graph::OpRegistry& ops, const KernelPlan& spec) {
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (const TilePlan& tile : spec.inputs) operands.push_back({tile.dtype, tile.shape});
  for (const TilePlan& tile : spec.outputs) results.push_back({tile.dtype, tile.shape});
  const graph::Op* op = ops.Find(spec.op);
  if (op != nullptr) {
    graph::OpCost cost = op->Cost({spec.attributes, operands, results});
    // A sum that the kernel keeps itself is read, too.
    for (size_t i = 0; spec.accumulate && spec.op != "accumulate" && i < results.size(); ++i) {
      cost.bytes += static_cast<double>(results[i].num_bytes());
    }
    return cost;
  }
  // Copies between a tile and what has no tile: a fed or fetched tensor, the parts of a packed one.
  graph::OpCost copy;
  for (const TensorType& type : operands) copy.bytes += static_cast<double>(type.num_bytes());
  for (const TensorType& type : results) copy.bytes += static_cast<double>(type.num_bytes());
  if (operands.empty() || results.empty()) copy.bytes *= 2;
  if (spec.op == "pack") copy.bytes = 2.0 * static_cast<double>(results[0].num_bytes());
  return copy;
}

}  // namespace penstock::planner
