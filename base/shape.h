// Shapes of tensors and the arithmetic of splitting a dimension into parts.
//
// A dimension of n elements split into k parts gives part p the range
// [ceil(p*n/k), ceil((p+1)*n/k)). The rule refines consistently: splitting part p of k again into
// j parts with the same rule gives the parts p*j .. p*j+j-1 of k*j. Parts may be empty.
//
// Example: n = 5, k = 4 gives [0,2) [2,3) [3,4) [4,5).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_SHAPE_H_
#define PENSTOCK_BASE_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace penstock {

// Extents of the dimensions, outermost first; row-major, contiguous. A scalar has none.
using Shape = absl::InlinedVector<int64_t, 6>;

// The most dimensions that a tensor may have.
inline constexpr int kMaxRank = 16;

// Product of the extents. REQUIRES: the shape passed CheckShape.
int64_t NumElements(absl::Span<const int64_t> shape);

// An error unless rank <= kMaxRank, every extent >= 0 and the number of elements fits 2^48.
absl::Status CheckShape(absl::Span<const int64_t> shape);

// "[8, 16]"; "[]" for a scalar.
std::string ToString(absl::Span<const int64_t> shape);

// Strides in elements of a contiguous row-major tensor.
Shape RowMajorStrides(absl::Span<const int64_t> shape);

// The indices begin, begin + 1, ... end - 1 of a dimension.
struct Range {
  int64_t begin = 0;  // the first index
  int64_t end = 0;    // one behind the last
  // The number of indices.
  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Part `part` of `parts` of a dimension of `extent`.
// REQUIRES: 0 <= part < parts, extent >= 0, and extent * parts fits an int64.
Range PartOf(int64_t extent, int64_t part, int64_t parts);

}  // namespace penstock

#endif  // PENSTOCK_BASE_SHAPE_H_
