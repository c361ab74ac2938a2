// Sums over a row and over columns, for kernels that normalise the last dimension.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_ROWS_H_
#define PENSTOCK_KERNELS_CPU_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {

// Sum over i < count of f(in[i]...), f on vectors.
template <typename T, typename F, typename... In>
inline T SumOf(int64_t count, F f, const In*... in) {
  Vec<T> even{};
  Vec<T> odd{};
  int64_t i = 0;
  for (; i + 2 * kLanes<T> <= count; i += 2 * kLanes<T>) {
    even += f(Load(in + i)...);
    odd += f(Load(in + i + kLanes<T>)...);
  }
  if (i + kLanes<T> <= count) {
    even += f(Load(in + i)...);
    i += kLanes<T>;
  }
  if (i < count) {
    Vec<T> last = f(LoadPart(in + i, count - i)...);
    for (int64_t lane = count - i; lane < kLanes<T>; ++lane) last[lane] = 0;
    odd += last;
  }
  return SumLanes(even + odd);
}

// Largest of count elements; -inf when there is none.
template <typename T>
inline T MaxOf(int64_t count, const T* x) {
  const T lowest = -std::numeric_limits<T>::infinity();
  Vec<T> max = Splat(lowest);
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) max = Max(max, Load(x + i));
  if (i < count) max = Max(max, LoadPart(x + i, count - i, lowest));
  return MaxLanes(max);
}

// Columns that a thread folds at a time when it goes down all rows of a matrix: the partial results
// stay in the first-level cache, and every thread has some.
inline constexpr int64_t kMaxColumnPiece = 1024;
inline int64_t ColumnPiece(int64_t columns, int num_threads) {
  const int64_t share = (columns + num_threads - 1) / num_threads;
  return std::clamp<int64_t>((share + 15) / 16 * 16, 128, kMaxColumnPiece);
}

// y = x, plus y when `adds`.
template <typename T>
inline void StoreOrAdd(int64_t count, bool adds, const T* x, T* y) {
  if (adds) {
    Map(
        count, [](auto sum, auto v) { return Wrapping(sum) + Wrapping(v); }, y, y, x);
  } else {
    std::copy(x, x + count, y);
  }
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ROWS_H_
