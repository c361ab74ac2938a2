// What poolings over planes of an image share.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_POOLING_H_
#define PENSTOCK_KERNELS_CPU_POOLING_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"

#include "graph/image_window.h"
#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {

// The window that slides over planes of {h, w}; without the attribute `window` it is the plane.
inline graph::ImageWindow PoolingWindowOf(const KernelSpec& spec,
                                          const std::array<int64_t, 2>& plane) {
  const Shape given = spec.attributes.GetInts("window");
  const std::array<int64_t, 2> taps =
      given.size() == 2 ? std::array<int64_t, 2>{given[0], given[1]} : plane;
  return graph::ImageWindowOf(spec.attributes, taps, taps);
}

inline std::array<int64_t, 2> PlaneOf(const TileDesc& tile) {
  return {tile.shape[2], tile.shape[3]};
}

// Whether an element replaces the largest so far: a NaN is larger than any number, and the first of
// equal ones stays. Without branches: which element is larger cannot be predicted.
template <typename T>
bool IsLarger(T element, T largest) {
  return (element > largest) | ((element != element) & (largest == largest));
}

// The elements that result `i` of an axis of `extent` elements reads. Poolings have no dilation.
inline Range WindowRange(const graph::ImageAxis& axis, int64_t i, int64_t extent) {
  const int64_t begin = i * axis.stride - axis.low;
  return {std::max<int64_t>(begin, 0), std::min(begin + axis.taps, extent)};
}

// f(stride) with strides that are common as constants, by which loops are vectorized.
template <typename F>
void WithStride(int64_t stride, F f) {
  if (stride == 1) {
    f(std::integral_constant<int64_t, 1>());
  } else if (stride == 2) {
    f(std::integral_constant<int64_t, 2>());
  } else {
    f(stride);
  }
}

// A pooling between the planes of images and those of its results, one after another.
class PoolingKernel : public CpuKernel {
 public:
  PoolingKernel(const KernelSpec& spec, Device& device, const TileDesc& x, const TileDesc& y)
      : CpuKernel(spec, device),
        in_(PlaneOf(x)),
        out_(PlaneOf(y)),
        window_(PoolingWindowOf(spec, in_)),
        num_planes_(x.shape[0] * x.shape[1]) {
    for (int64_t j = 0; j < out_[1]; j += kMostResults) {
      const int64_t count = std::min(kMostResults, out_[1] - j);
      for (int64_t t = 0; t < window_[1].taps; ++t) taps_.push_back(TapOf(t, j, count));
    }
  }

 protected:
  int64_t in_size() const { return in_[0] * in_[1]; }
  int64_t out_size() const { return out_[0] * out_[1]; }
  int64_t num_taps() const { return window_[0].taps * window_[1].taps; }

  // f(plane, thread) for every plane; threads count from 0.
  template <typename F>
  void ForEachPlane(F f) {
    pool_.ParallelFor(num_planes_, GrainRows(std::max(in_size(), out_size() * num_taps())),
                      [&](int64_t begin, int64_t end, int thread) {
                        for (int64_t plane = begin; plane < end; ++plane) f(plane, thread);
                      });
  }

  // f(i, rows, columns) for every result of a plane: its number and the elements that it reads.
  template <typename F>
  void ForEachWindow(F f) const {
    for (int64_t i = 0; i < out_[0]; ++i) {
      const Range rows = WindowRange(window_[0], i, in_[0]);
      for (int64_t j = 0; j < out_[1]; ++j) {
        f(i * out_[1] + j, rows, WindowRange(window_[1], j, in_[1]));
      }
    }
  }

  // Of a part of a row, those results that have an element at a tap of their columns, and the
  // column of the first of these elements. One after another, the elements are a stride apart:
  // loops over results need no conditions, so they can be vectorized.
  struct Tap {
    Range results;  // in the part
    int64_t column = 0;
    int64_t num_results() const { return results.end - results.begin; }
  };
  struct Part {
    int64_t first = 0;  // of the results, in the plane
    int64_t count = 0;  // at most kMostResults
    Range rows;         // that they read
    absl::Span<const Tap> taps;
  };

  // f(part) for the results of a plane, a part of a row at a time.
  template <typename F>
  void ForEachPart(F f) const {
    const auto num_taps = static_cast<size_t>(window_[1].taps);
    for (int64_t i = 0; i < out_[0]; ++i) {
      Part part{.first = 0, .count = 0, .rows = WindowRange(window_[0], i, in_[0]), .taps = {}};
      const Tap* taps = taps_.data();
      for (int64_t j = 0; j < out_[1]; j += kMostResults, taps += num_taps) {
        part.first = i * out_[1] + j;
        part.count = std::min(kMostResults, out_[1] - j);
        part.taps = {taps, num_taps};
        f(part);
      }
    }
  }
  // f(tap, place, stride) for the taps of a part, a row after another, each row from its first tap
  // or, reversed, from its last: with where in the plane the tap's first element is.
  template <bool is_reversed = false, typename F>
  void ForEachTap(const Part& part, F f) const {
    WithStride(window_[1].stride, [&](auto stride) {
      for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
        for (size_t t = 0; t < part.taps.size(); ++t) {
          const Tap& tap = part.taps[is_reversed ? part.taps.size() - 1 - t : t];
          f(tap, row * in_[1] + tap.column, stride);
        }
      }
    });
  }
  static constexpr int64_t kMostResults = 64;
  // Of rows with fewer results, the windows of averages are taken one by one.
  static constexpr int64_t kLeastInParts = 8;

  const std::array<int64_t, 2> in_;
  const std::array<int64_t, 2> out_;
  const graph::ImageWindow window_;
  const int64_t num_planes_;

 private:
  // Of the part of a row that begins with result `j`.
  Tap TapOf(int64_t tap, int64_t j, int64_t count) const {
    const graph::ImageAxis& axis = window_[1];
    const int64_t column = j * axis.stride - axis.low + tap;  // of the first result
    const int64_t begin = column >= 0 ? 0 : (-column + axis.stride - 1) / axis.stride;
    const int64_t end =
        in_[1] > column ? std::min(count, (in_[1] - column - 1) / axis.stride + 1) : 0;
    return {{begin, end}, column + begin * axis.stride};
  }

  std::vector<Tap> taps_;  // of the parts of a row, one after another
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_POOLING_H_
