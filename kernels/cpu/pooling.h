// What poolings over planes of an image share.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_POOLING_H_
#define PENSTOCK_KERNELS_CPU_POOLING_H_

#include <algorithm>
#include <array>
#include <cstdint>

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

  const std::array<int64_t, 2> in_;
  const std::array<int64_t, 2> out_;
  const graph::ImageWindow window_;
  const int64_t num_planes_;
};

// The first of the largest elements of a window; a NaN is larger than any number.
template <typename T>
int64_t LargestOf(const T* x, int64_t width, const Range& rows, const Range& columns) {
  int64_t best = rows.begin * width + columns.begin;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t at = row * width + columns.begin; at < row * width + columns.end; ++at) {
      if (x[at] > x[best] || (x[at] != x[at] && x[best] == x[best])) best = at;
    }
  }
  return best;
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_POOLING_H_
