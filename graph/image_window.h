// How a convolution or a pooling moves over an image x[n, c, h, w]: for each of the two image
// dimensions the taps of the window, its stride, its dilation and the padding.
//
// Attributes: `strides`, `dilation` and `window` have an entry for each dimension, h then w.
// `padding` has two, for both sides of h and of w, or four: top, bottom, left, right.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_GRAPH_IMAGE_WINDOW_H_
#define PENSTOCK_GRAPH_IMAGE_WINDOW_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"

#include "graph/attributes.h"

namespace penstock::graph {

// Result i reads the elements i * stride - low + t * dilation for the taps t, where they exist.
struct ImageAxis {
  int64_t taps = 1;
  int64_t stride = 1;
  int64_t low = 0;   // padding before the first element
  int64_t high = 0;  // and after the last one
  int64_t dilation = 1;

  // Elements from the first that a result reads to the last one.
  int64_t span() const { return dilation * (taps - 1) + 1; }
  // Results of `extent` elements; 0 where the window does not fit.
  int64_t NumResults(int64_t extent) const;
};

using ImageWindow = std::array<ImageAxis, 2>;

// The window of `taps` that the attributes describe. Strides default to `strides`. Errors name the
// attribute: a wrong number of entries, an entry out of range.
absl::StatusOr<ImageWindow> ReadImageWindow(const Attributes& attributes,
                                            const std::array<int64_t, 2>& taps,
                                            const std::array<int64_t, 2>& strides = {1, 1});

// The same of attributes that ReadImageWindow has accepted.
ImageWindow ImageWindowOf(const Attributes& attributes, const std::array<int64_t, 2>& taps,
                          const std::array<int64_t, 2>& strides = {1, 1});

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_IMAGE_WINDOW_H_
