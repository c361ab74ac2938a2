// What poolings over planes of an image share.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_POOLING_H_
#define PENSTOCK_KERNELS_CPU_POOLING_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "graph/image_window.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/simd.h"

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

// The elements that result `i` of an axis of `extent` elements reads. Poolings have no dilation.
inline Range WindowRange(const graph::ImageAxis& axis, int64_t i, int64_t extent) {
  const int64_t begin = i * axis.stride - axis.low;
  return {std::max<int64_t>(begin, 0), std::min(begin + axis.taps, extent)};
}

// A pooling between the planes of images and those of its results, one after another.
class PoolingKernel : public CpuKernel {
 public:
  PoolingKernel(const KernelSpec& spec, Device& device, const TileDesc& x, const TileDesc& y)
      : CpuKernel(spec, device),
        in_(PlaneOf(x)),
        out_(PlaneOf(y)),
        window_(PoolingWindowOf(spec, in_)),
        num_planes_(x.shape[0] * x.shape[1]) {}

 protected:
  int64_t in_size() const { return in_[0] * in_[1]; }
  int64_t out_size() const { return out_[0] * out_[1]; }
  int64_t num_taps() const { return window_[0].taps * window_[1].taps; }

  // f(plane) for every plane.
  template <typename F>
  void ForEachPlane(F f) {
    pool_.ParallelFor(num_planes_, GrainRows(std::max(in_size(), out_size() * num_taps())),
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t plane = begin; plane < end; ++plane) f(plane);
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

  // f(first, count, rows) for the results of a plane, a part of a row at a time: the number of the
  // first, at most kMostResults, and the rows that they read.
  template <typename F>
  void ForEachPart(F f) const {
    for (int64_t i = 0; i < out_[0]; ++i) {
      const Range rows = WindowRange(window_[0], i, in_[0]);
      for (int64_t j = 0; j < out_[1]; j += kMostResults) {
        f(i * out_[1] + j, std::min(kMostResults, out_[1] - j), rows);
      }
    }
  }
  static constexpr int64_t kMostResults = 64;
  // Of rows with fewer results, the windows of averages are taken one by one.
  static constexpr int64_t kLeastInParts = 8;

  // Of a part of a row that begins with result `first` of the plane, those that have an element at
  // a tap of their columns, and the column of the first of these elements. One after another, the
  // elements are a stride apart: loops over results need no conditions, so they can be vectorized.
  struct Tap {
    Range results;  // in the part
    int64_t column = 0;
  };
  Tap TapOf(int64_t tap, int64_t first, int64_t count) const {
    const graph::ImageAxis& axis = window_[1];
    const int64_t j = first % out_[1];
    const int64_t column = j * axis.stride - axis.low + tap;  // of the first result
    const int64_t begin = column >= 0 ? 0 : (-column + axis.stride - 1) / axis.stride;
    const int64_t end =
        in_[1] > column ? std::min(count, (in_[1] - column - 1) / axis.stride + 1) : 0;
    return {{begin, end}, column + begin * axis.stride};
  }

  const std::array<int64_t, 2> in_;
  const std::array<int64_t, 2> out_;
  const graph::ImageWindow window_;
  const int64_t num_planes_;
};

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

// Finds the first of the largest elements of windows; a NaN is larger than any number.
template <typename T>
class MaxPoolingKernel : public PoolingKernel {
 public:
  using PoolingKernel::PoolingKernel;

 protected:
  // Of the windows of a part of a row: the elements, and where in the plane.
  struct Largest {
    std::array<T, kMostResults> elements;
    std::array<IntOf<T>, kMostResults> places;
  };

  // f(first, count, largest) for all results of the plane `x`, a part of a row at a time.
  template <typename F>
  void ForEachLargest(const T* x, F f) const {
    Largest largest;
    ForEachPart([&](int64_t first, int64_t count, const Range& rows) {
      largest.elements.fill(-std::numeric_limits<T>::infinity());
      largest.places.fill(-1);
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int64_t t = 0; t < window_[1].taps; ++t) {
          const Tap tap = TapOf(t, first, count);
          const int64_t place = row * in_[1] + tap.column;
          WithStride(window_[1].stride, [&](auto stride) {
            TakeLarger(x + place, place, stride, tap.results.end - tap.results.begin,
                       largest.elements.data() + tap.results.begin,
                       largest.places.data() + tap.results.begin);
          });
        }
      }
      for (int64_t k = 0; k < count; ++k) {
        if (largest.places[k] >= 0) continue;
        // All are minus infinity.
        const Range columns = WindowRange(window_[1], first % out_[1] + k, in_[1]);
        largest.places[k] = static_cast<IntOf<T>>(rows.begin * in_[1] + columns.begin);
      }
      f(first, count, largest);
    });
  }

 private:
  // Without branches: which element is larger cannot be predicted.
  template <typename Stride>
  static void TakeLarger(const T* __restrict x, int64_t place, Stride stride, int64_t count,
                         T* __restrict elements, IntOf<T>* __restrict places) {
    for (int64_t k = 0; k < count; ++k) {
      const T element = x[k * stride];
      const bool is_larger =
          (element > elements[k]) | ((element != element) & (elements[k] == elements[k]));
      elements[k] = is_larger ? element : elements[k];
      places[k] = is_larger ? static_cast<IntOf<T>>(place + k * stride) : places[k];
    }
  }
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_POOLING_H_
