// The largest element of a row, and what it says of the row.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_ROWS_H_
#define PENSTOCK_KERNELS_CPU_ROWS_H_

#include <cstdint>
#include <limits>

#include "kernels/cpu/simd.h"

namespace penstock::kernels {

// Largest of count elements, NaN when one is; -inf when there is none.
template <typename T>
inline Arith<T> MaxOf(int64_t count, const T* x) {
  const Arith<T> lowest = -std::numeric_limits<Arith<T>>::infinity();
  Vec<T> max = Splat(lowest);
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) max = Max(max, Load(x + i));
  if (i < count) max = Max(max, LoadPart(x + i, count - i, lowest));
  return MaxLanes(max);
}

// 0 for the maximum of a row whose softmax exists; NaN, as the softmax, when an element is NaN or
// infinity or all are -infinity.
template <typename T>
inline T NanUnlessFinite(T max) {
  return max - max;
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ROWS_H_
