// What poolings over planes of an image share.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_POOLING_H_
#define PENSTOCK_KERNELS_CPU_POOLING_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

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

// Whether an element replaces the largest so far: a NaN is larger than any number, and the first of
// equal ones stays. Of vectors, for each element.
template <typename T>
auto IsLarger(T element, T largest) {
  return (!(element <= largest)) & (largest == largest);
}

// The elements that result `i` of an axis of `extent` elements reads. Poolings have no dilation.
inline Range WindowRange(const graph::ImageAxis& axis, int64_t i, int64_t extent) {
  const int64_t begin = i * axis.stride - axis.low;
  return {std::max<int64_t>(begin, 0), std::min(begin + axis.taps, extent)};
}

// The first `count` elements, which may be all.
template <typename T>
Vec<T> LoadUpTo(const T* from, int64_t count) {
  return count == kLanes<T> ? Load(from) : LoadPart(from, count);
}
template <typename T>
void StoreUpTo(T* to, const Vec<T>& v, int64_t count) {
  if (count == kLanes<T>) {
    Store(to, v);
  } else {
    StorePart(to, v, count);
  }
}

template <int kFirst, typename V, int... kLane>
V UnzipLanes(const V& low, const V& high, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(low, high, (kFirst + 2 * kLane)...);
}

// Of two vectors, one behind the other: the elements with even numbers, and those with odd ones.
template <typename V>
std::pair<V, V> Unzip(const V& low, const V& high) {
  constexpr std::make_integer_sequence<int, kLanes<ElementOf<V>>> kAll;
  return {UnzipLanes<0>(low, high, kAll), UnzipLanes<1>(low, high, kAll)};
}

template <int kFirst, typename V, int... kLane>
V ZipLanes(const V& even, const V& odd, std::integer_sequence<int, kLane...>) {
  constexpr int kCount = kLanes<ElementOf<V>>;
  return __builtin_shufflevector(even, odd, (kFirst + kLane / 2 + kLane % 2 * kCount)...);
}

// What Unzip takes apart.
template <typename V>
std::pair<V, V> Zip(const V& even, const V& odd) {
  constexpr int kCount = kLanes<ElementOf<V>>;
  constexpr std::make_integer_sequence<int, kCount> kAll;
  return {ZipLanes<0>(even, odd, kAll), ZipLanes<kCount / 2>(even, odd, kAll)};
}

// The rows of a plane that windows read, laid out for vectors: what a tap reads for successive
// results lies one after another, and what lies outside of the plane has a value of its own. Rows
// are laid out when a window reaches them, and kept for the windows that read them again.
template <typename T>
class WindowRows {
 public:
  // For windows whose columns give `num_results` results a row.
  WindowRows(const graph::ImageWindow& window, const std::array<int64_t, 2>& plane,
             int64_t num_results, T outside)
      : window_(window), plane_(plane) {
    const graph::ImageAxis& columns = window[1];
    width_ =
        (num_results + kLanes<T> - 1) / kLanes<T> * kLanes<T> + (columns.taps - 1) / columns.stride;
    const int64_t num_phases = std::min(columns.stride, columns.taps);
    for (int64_t phase = 0; phase < num_phases; ++phase) {
      // Element k is that of column k * stride + phase - low.
      const int64_t begin = std::max<int64_t>(0, columns.low - phase + columns.stride - 1);
      const int64_t end = plane[1] + columns.low - phase + columns.stride - 1;
      inside_.push_back({begin / columns.stride, std::min(end / columns.stride, width_)});
    }
    for (int64_t tap = 0; tap < columns.taps; ++tap) {
      taps_.push_back(tap % columns.stride * width_ + tap / columns.stride);
    }
    row_size_ = num_phases * width_;
    elements_.assign(static_cast<size_t>(window[0].taps * row_size_), outside);
  }

  // The rows that the windows of row `i` of the results read. REQUIRES: i counts up from 0.
  Range MoveTo(const T* plane, int64_t i) {
    const Range rows = WindowRange(window_[0], i, plane_[0]);
    next_row_ = i == 0 ? rows.begin : std::max(next_row_, rows.begin);
    for (; next_row_ < rows.end; ++next_row_) LayOut(plane, next_row_);
    return rows;
  }

  // A row that the last MoveTo returned, as it is laid out.
  const T* RowAt(int64_t row) const { return &elements_[PlaceOf(row)]; }
  // What the tap reads in it for the results from `j` on.
  Vec<T> Load(const T* row, int64_t tap, int64_t j) const {
    return kernels::Load(row + taps_[tap] + j);
  }

 private:
  int64_t PlaceOf(int64_t row) const { return row % window_[0].taps * row_size_; }

  void LayOut(const T* plane, int64_t row) {
    const T* const from = plane + row * plane_[1];
    T* const to = &elements_[PlaceOf(row)];
    if (window_[1].stride == 1) {
      const auto [begin, end] = inside_[0];
      for (int64_t k = begin; k < end; k += kLanes<T>) {
        const int64_t count = std::min<int64_t>(kLanes<T>, end - k);
        StoreUpTo(to + k, LoadUpTo(from + k - window_[1].low, count), count);
      }
    } else if (window_[1].stride == 2 && inside_.size() == 2) {
      LayOutPairs(from, to);
    } else {
      for (size_t phase = 0; phase < inside_.size(); ++phase) {
        const auto first = static_cast<int64_t>(phase);
        for (int64_t k = inside_[phase].begin; k < inside_[phase].end; ++k) {
          to[first * width_ + k] = from[k * window_[1].stride + first - window_[1].low];
        }
      }
    }
  }

  // With a stride of 2: the elements of even columns and those of odd ones.
  void LayOutPairs(const T* from, T* to) const {
    constexpr int64_t kCount = kLanes<T>;
    for (int64_t pair = 0; 2 * pair < plane_[1]; pair += kCount) {
      const int64_t left = plane_[1] - 2 * pair;
      const T* const at = from + 2 * pair;
      const Vec<T> low = LoadUpTo(at, std::min(left, kCount));
      const Vec<T> high =
          left > kCount ? LoadUpTo(at + kCount, std::min(left - kCount, kCount)) : Vec<T>{};
      const auto store = [&](int64_t parity, const Vec<T>& elements) {
        const int64_t phase = (parity + window_[1].low) % 2;
        const int64_t k = pair + (parity + window_[1].low) / 2;
        const int64_t count = std::min(kCount, inside_[phase].end - k);
        if (count > 0) StoreUpTo(to + phase * width_ + k, elements, count);
      };
      const auto [even, odd] = Unzip(low, high);
      store(0, even);
      store(1, odd);
    }
  }

  graph::ImageWindow window_;
  std::array<int64_t, 2> plane_;
  int64_t width_ = 0;  // of the elements that are a stride apart
  int64_t row_size_ = 0;
  std::vector<Range> inside_;  // by the first of them
  std::vector<int64_t> taps_;  // where what a tap reads begins
  std::vector<T> elements_;
  int64_t next_row_ = 0;
};

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

  // f(j, count) for the results of a row, a vector of them at a time.
  template <typename T, typename F>
  void ForEachVector(F f) const {
    for (int64_t j = 0; j < out_[1]; j += kLanes<T>) {
      f(j, std::min<int64_t>(kLanes<T>, out_[1] - j));
    }
  }

  // Where in the plane the first of the largest elements of a window is.
  template <typename T>
  int64_t FirstLargest(const T* x, const Range& rows, const Range& columns) const {
    int64_t first = rows.begin * in_[1] + columns.begin;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t column = columns.begin; column < columns.end; ++column) {
        const int64_t place = row * in_[1] + column;
        if (IsLarger(x[place], x[first])) first = place;
      }
    }
    return first;
  }

  // Windows with fewer results a row are taken one by one.
  static constexpr int64_t kLeastInVectors = 4;

  const std::array<int64_t, 2> in_;
  const std::array<int64_t, 2> out_;
  const graph::ImageWindow window_;
  const int64_t num_planes_;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_POOLING_H_
