// Shardings seen from the factors of an operator's sharding rule instead of from the dimensions of
// its tensors: what propagation works on.
//
// Worked example: reshape f32[8] -> f32[2, 4] on [x=4, y=2] has the factors i=2 and j=4; the
// operand's dimension maps to [i, j], the result's to [i] and [j]. Projecting the operand's
// @[x.y] gives it i: x:(1)2 and j: x:(2)2.y, because i is used up by half of x. The open result
// has nothing on either. Once propagation has given the result the operand's factor axes,
// unprojecting gives the result @[x:(1)2?, x:(2)2.y?] and the operand what it had.
//
// A dimension may be split along its second factor only where the first is split into single
// elements; otherwise the parts would be strided. So a factor that is not the minor-most of its
// dimension takes only axes whose sizes divide it. The minor-most may be split unevenly.
//
// After the sharding projections published for Shardy (openxla/shardy, docs/propagation.md,
// "Propagate shardings along factors").
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_FACTOR_SHARDING_H_
#define PENSTOCK_PLANNER_SHARDING_FACTOR_SHARDING_H_

#include <vector>

#include "absl/types/span.h"

#include "graph/op.h"
#include "graph/sharding.h"
#include "planner/sharding/axis_list.h"

namespace penstock::planner {

// How one tensor splits one factor.
struct FactorSharding {
  AxisList axes;
  // Axes of the dimension behind `axes` that fit no whole number of times into what is left of the
  // factor. They stay where they are: the factor takes no further axes, nor do those minor to it.
  AxisList overflow;
  bool is_mapped = false;      // the tensor has the factor
  bool is_closed = false;      // takes no further axes
  bool is_minor_most = false;  // the last factor of its dimension
};

// The factor shardings of one tensor.
struct TensorProjection {
  std::vector<FactorSharding> factors;  // one a factor of the rule
  AxisList blocked;  // explicitly replicated, or partial: may not split a factor of this tensor
  AxisList fixed;    // split dimensions that follow no factor

  bool Has(int factor) const { return factors[factor].is_mapped; }
};

// Operands first, then results.
struct Projection {
  std::vector<TensorProjection> tensors;
  int num_operands = 0;

  absl::Span<const TensorProjection> operands() const {
    return absl::MakeConstSpan(tensors).subspan(0, num_operands);
  }
  absl::Span<const TensorProjection> results() const {
    return absl::MakeConstSpan(tensors).subspan(num_operands);
  }
};

// REQUIRES: `sharding` is canonical and has the rank of `mapping`, whose factors index `factors`.
TensorProjection ProjectTensor(const graph::TensorFactors& mapping,
                               absl::Span<const graph::Factor> factors,
                               const graph::Sharding& sharding);
// The same, in place of another projection, whose memory is used again.
void ProjectTensor(const graph::TensorFactors& mapping, absl::Span<const graph::Factor> factors,
                   const graph::Sharding& sharding, TensorProjection* projection);

// The sharding that the factors give: `old` with the axes of each dimension rewritten. Axes of
// factors that would need a strided view are left out, and so are temporal axes (with what is minor
// to them) that would not divide the dimension or would be cut.
graph::Sharding UnprojectTensor(const graph::Mesh& mesh, const graph::TensorFactors& mapping,
                                absl::Span<const graph::Factor> factors,
                                const TensorProjection& projection, const Shape& shape,
                                const graph::Sharding& old);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_FACTOR_SHARDING_H_
