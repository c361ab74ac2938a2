// Launches of sums of squares, such as those of all gradients.
//
// The sum of a tensor is the sum of those of its parts. How it is divided, and the order of
// additions, are functions of its size alone; nothing is added up by atomic operations.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_SUM_SQUARES_H_
#define PENSTOCK_KERNELS_CUDA_SUM_SQUARES_H_

#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_table.h"

namespace penstock::kernels::cuda {

// *y = the sum over `count` elements of x, plus *y with `adds`. Chunks of the table are parts.
struct SumSquaresEntry {
  int64_t count = 0;
  int32_t part_size = 0;  // SumPartSize(count)
  bool adds = false;
  const void* x = nullptr;
  void* y = nullptr;
};
using SumSquaresTable = LaunchTable<SumSquaresEntry, 112>;

// Parts of a tensor: of the same size but for the last. There is at least one.
inline constexpr int64_t kMaxSumParts = 4096;
constexpr int32_t SumPartSize(int64_t count) {
  constexpr int64_t kLeast = 16384;
  constexpr int64_t kMultiple = 8;  // elements of the largest packs
  const int64_t size = CeilDiv(CeilDiv(count, kMaxSumParts), kMultiple) * kMultiple;
  return static_cast<int32_t>(size < kLeast ? kLeast : size);
}
constexpr int64_t NumSumParts(int64_t count) {
  return count == 0 ? 1 : CeilDiv(count, SumPartSize(count));
}

// Parts that a table may have: `sums` has room for as many.
inline constexpr int64_t kMaxTableParts = 16384;

// T: float, BFloat16 or Float16, of x and y.
template <typename T>
LaunchResult LaunchSumSquares(StreamHandle stream, const SumSquaresTable& table, float* sums);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_SUM_SQUARES_H_
