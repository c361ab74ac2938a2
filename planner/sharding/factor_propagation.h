// One step of propagation: sharing the axes of each factor among the operands and results of one
// operator. Works on a Projection alone.
//
// Worked example: d = matmul(x, w) with factors i, k, j; x has i and k, w has k and j, d has i and
// j. Before: x is i: a.b, w is j: a.c, d is unsplit. Along i the axes to share are a.b, along j
// a.c, but d cannot be split by a twice.
// - The basic strategy shares only what fits every tensor: nothing.
// - The aggressive strategy decides the conflict for the factor whose source is the larger tensor:
//   if w has more elements than x, d becomes j: a.c, and of a.b nothing is left for i, as its
//   major axis is taken.
//
// After the basic and aggressive factor propagation published for Shardy (openxla/shardy,
// docs/propagation.md, "Conflict resolution hierarchy").
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_FACTOR_PROPAGATION_H_
#define PENSTOCK_PLANNER_SHARDING_FACTOR_PROPAGATION_H_

#include <cstdint>

#include "absl/types/span.h"

#include "graph/op.h"
#include "planner/sharding/factor_sharding.h"

namespace penstock::planner {

// Bits, so that directions unite by |.
enum class Direction : uint8_t {
  kNone = 0,
  kForward = 1,   // from operands to results (and among operands)
  kBackward = 2,  // from results to operands (and among results)
  kBoth = 3,
};

enum class PropagationStrategy : uint8_t { kBasic, kAggressive };

// The axes that the tensors agree to split `factor` by: the longest list that some tensor has and
// none contradicts, else the part before the first contradiction. With kForward and kBackward only
// the source side can make the list longer; the other side still contradicts.
AxisList CompatibleAxes(const Projection& projection, int factor, Direction direction);

// Extends factor shardings in place along every factor, `directions` holding one entry a factor.
// Existing axes are never removed or replaced. `is_elementwise` turns on two preferences of the
// aggressive strategy: the most split factor wins among sources of equal size, and an operand takes
// no more from its siblings than the result takes. Returns one flag a tensor: whether it changed.
std::vector<bool> PropagateFactors(PropagationStrategy strategy,
                                   absl::Span<const graph::Factor> factors,
                                   absl::Span<const Direction> directions, bool is_elementwise,
                                   Projection* projection);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_FACTOR_PROPAGATION_H_
