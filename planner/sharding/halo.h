// What a device lacks of a tensor of which its operator reads a window (graph/window.h): where a
// dimension of the result is split, the part of a device reads a range of the operand that is not
// the part that it holds.
//
// An operand that is to be held in windows is redistributed in two steps: to the base, which is
// split over the same axes, as any other; then each part gets the elements that it lacks, from the
// nearest part that has them (halo_exchange, one for each dimension). Where every device holds its
// window already, or more, nothing is done: kernels read the range that they need of a larger tile.
//
// Worked example. y = slice(x) from 1, f32[8] to f32[7], over d=4. The parts of y begin at 0, 2, 4
// and 6, so they read 1..2, 3..4, 5..6 and 7 of x, whose parts are 0..1, 2..3, 4..5 and 6..7. The
// elements 2, 4 and 6 each go one part down: 3 elements in all, and one at most for a device.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_HALO_H_
#define PENSTOCK_PLANNER_SHARDING_HALO_H_

#include <cstdint>
#include <vector>

#include "base/shape.h"
#include "base/tensor.h"
#include "graph/sharding.h"

namespace penstock::planner {

// Whether redistribution to `needed` has to begin elsewhere than at `held`, but for windows: the
// dimensions without windows are split alike, and so are those with, or less far.
bool IsHaloBase(const graph::Sharding& held, const graph::Sharding& needed);

// From where the exchanges start that end at `needed`, which has windows: `held`, or `needed`
// without windows.
graph::Sharding HaloBase(const graph::Sharding& held, const graph::Sharding& needed);

// What an operand held as `held` has to become for a reader that needs `needed`: in dimensions in
// which every device holds its window, it stays as it is. Partial values are not compared.
graph::Sharding LeastNeeded(const Shape& shape, const graph::Sharding& held,
                            const graph::Sharding& needed);

// A range of a dimension that one part gets from another.
struct HaloPiece {
  int64_t source = 0;  // index of the part
  Range range;
  friend bool operator==(const HaloPiece&, const HaloPiece&) = default;
};

// What each part of `needed` lacks of `held`, in the order of the dimension, which has `extent`
// elements. Parts are those of `needed`. REQUIRES: the axes of `held` are the first of `needed`'s.
std::vector<std::vector<HaloPiece>> HaloPieces(const graph::DimSharding& held,
                                               const graph::DimSharding& needed, int64_t extent);

// Bytes that a device receives at most in the exchanges from `base` to `needed`.
int64_t HaloBytes(const TensorType& type, const graph::Sharding& base,
                  const graph::Sharding& needed);

// The dimension that the step from `from` to `to` puts into windows; -1: it is no halo exchange.
int ExchangedDim(const graph::Sharding& from, const graph::Sharding& to);

// The most elements that a part of the dimension has.
int64_t LargestPart(const graph::DimSharding& dim, int64_t extent);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_HALO_H_
