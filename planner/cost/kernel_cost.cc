#include "planner/cost/kernel_cost.h"

#include <cstddef>
#include <vector>

namespace penstock::planner {

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
