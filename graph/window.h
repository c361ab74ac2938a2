// Which elements of an operand the elements of a result read, along one dimension: what a slice, a
// pad, a convolution or a pooling states of a dimension, so that it can stay split.
//
// Element i of `extent` reads the elements floor((i * stride + low) / divisor) to
// floor((i * stride + low + size - 1) / divisor) of the operand, as far as those exist.
//
//   slice from s by steps of t           {stride = t, low = s}
//   pad with p before the first element  {low = -p}
//   convolution of k taps, padding p     {low = -p, size = k}
//   its gradient, from that of result    {low = p - k + 1, size = k}
//   the same where the stride is t <= k  {divisor = t, low = p + t - k, size = k - t + 1}
//
// Worked example. A convolution of 3 taps with padding 1 over 8 elements has 8 results. Of the four
// parts of the results, the second has 2 and 3, which read the elements 1 to 4: the halo of the
// part is 1 and 4, as 2 and 3 are its own.
//
// Thread rule: a value.

#ifndef PENSTOCK_GRAPH_WINDOW_H_
#define PENSTOCK_GRAPH_WINDOW_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "base/shape.h"

namespace penstock::graph {

// The constants of the formula at the top, for one dimension.
struct Window {
  int64_t extent = 0;  // elements of the result
  // Elements of the operand that one element of the result moves on by, before `divisor`.
  int64_t stride = 1;
  int64_t divisor = 1;  // by which positions are divided, rounding down
  int64_t low = 0;      // position of the first element that element 0 reads, before `divisor`
  int64_t size = 1;     // positions that an element reads, before `divisor`

  // What the results in the range read of an operand of `operand_extent` elements, and what lies
  // between. Nothing for no results.
  Range Reads(const Range& results, int64_t operand_extent) const;

  friend auto operator<=>(const Window&, const Window&) = default;
};

// Refuses windows whose arithmetic could overflow, and those that are empty or go backwards.
absl::Status CheckWindow(const Window& window);

// "window(of=7, low=1)": what differs from the defaults above.
std::string ToString(const Window& window);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_WINDOW_H_
