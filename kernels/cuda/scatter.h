// Sums of rows by index: the device code that the kernels launched by ScatterLaunchOf share.
//
// Thread rule: called by all threads of a block.

#ifndef PENSTOCK_KERNELS_CUDA_SCATTER_H_
#define PENSTOCK_KERNELS_CUDA_SCATTER_H_

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {

inline constexpr int kScatterIndices = 4;  // of a thread, between two barriers
inline constexpr int kScatterBatch = 4;    // addends that a thread loads at a time

static_assert(kScatterIndices * kScatterThreads / kWarp <= kWarp);  // a lane for each mask

// For each i in [0, count), in ascending order: adds load(i) to sums[row of i][threadIdx.x].
//
//   find(i, step, rows): rows[k] = the row of index i + k * step in the block, or -1 if the block
//                        does not have it or the index is not below `count`.
//   load(i):             the addend of the thread's column.
//   has_column:          whether the thread has one.
//
// A chunk of indices leaves a bit for each of them, so that threads spend time only on indices that
// concern their block.
template <typename Find, typename Load>
__device__ void ScatterAdd(int64_t count, bool has_column, const Find& find, const Load& load,
                           float (&sums)[kMaxScatterRows][kScatterThreads]) {
  // Two of each: a chunk is written while slower warps read the one before.
  __shared__ unsigned masks[2][kWarp];
  __shared__ uint8_t row_of[2][kScatterIndices * kScatterThreads];
  static_assert(kMaxScatterRows <= 256);
  const int own = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = own % kWarp;
  const int num_warps = threads / kWarp;
  int side = 0;
  for (int64_t begin = 0; begin < count; begin += kScatterIndices * threads, side = 1 - side) {
    int rows[kScatterIndices];
    find(begin + own, threads, rows);
    for (int k = 0; k < kScatterIndices; ++k) {
      const unsigned mask = __ballot_sync(0xffffffffu, rows[k] >= 0 ? 1 : 0);
      if (lane == 0) masks[side][k * num_warps + own / kWarp] = mask;
      if (rows[k] >= 0) row_of[side][k * threads + own] = static_cast<uint8_t>(rows[k]);
    }
    __syncthreads();
    const bool has_bits = lane < kScatterIndices * num_warps && masks[side][lane] != 0;
    unsigned words = __ballot_sync(0xffffffffu, has_bits ? 1 : 0);
    if (!has_column) words = 0;
    for (; words != 0; words &= words - 1) {
      const int word = __ffs(static_cast<int>(words)) - 1;
      unsigned mask = masks[side][word];
      while (mask != 0) {
        int at[kScatterBatch];
        float addends[kScatterBatch] = {};
        for (int k = 0; k < kScatterBatch; ++k, mask &= mask - 1) {
          at[k] = mask != 0 ? word * kWarp + __ffs(static_cast<int>(mask)) - 1 : -1;
          if (at[k] >= 0) addends[k] = load(begin + at[k]);
        }
        for (int k = 0; k < kScatterBatch; ++k) {
          if (at[k] >= 0) sums[row_of[side][at[k]]][own] += addends[k];
        }
      }
    }
  }
  __syncthreads();  // the next call begins with the first side
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_SCATTER_H_
