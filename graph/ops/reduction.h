// The family of reductions over listed axes: reduce_sum, reduce_mean, reduce_max. The file of an
// operator gives its gradient.
//
// Thread rule: as Op.

#ifndef PENSTOCK_GRAPH_OPS_REDUCTION_H_
#define PENSTOCK_GRAPH_OPS_REDUCTION_H_

#include <memory>
#include <string_view>
#include <vector>

#include "graph/ops/common.h"

namespace penstock::graph::ops {

struct ReductionDef {
  std::string_view name;
  // How partial results combine. reduce_mean divides by the global extent, so its parts add up.
  Reduction reduction = Reduction::kSum;
  bool is_linear = false;
  bool takes_integers = false;
  // dx of the node, given dy.
  ValueId (*gradient)(GraphBuilder& builder, const Node& node, ValueId dy) = nullptr;
};
std::unique_ptr<const Op> MakeReduction(ReductionDef def);

// The axes that a reduction of a tensor of `rank` takes away, counted from the front, sorted.
std::vector<int64_t> ReducedAxes(const Attributes& attributes, int rank);

// The result of a reduction, or its gradient, repeated over the reduced axes: the operand's shape.
ValueId BroadcastReduced(GraphBuilder& builder, const Node& node, ValueId value);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_REDUCTION_H_
