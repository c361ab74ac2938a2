// Launches of kernels with random numbers. T: float, BFloat16 or Float16.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_DRAWS_H_
#define PENSTOCK_KERNELS_CUDA_DRAWS_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// A tile in its global tensor: position to row-major index of up to kMaxTileDims dimensions.
inline constexpr int kMaxTileDims = 8;
struct TileMap {
  int32_t rank = 0;
  int64_t extents[kMaxTileDims] = {};  // of the tile, outermost first
  int64_t strides[kMaxTileDims] = {};  // of the global tensor
  int64_t offset = 0;                  // global index of the first element
};

// The draws of base/random.h.
struct RandomParams {
  uint64_t seed = 0;
  uint32_t stream = 0;
  uint32_t step = 0;
  const LaunchOffsets* offsets = nullptr;  // of the step; null: 0
  TileMap tile;
};
// Keeps an element where its word >> 8 is at least `threshold`.
template <typename T>
LaunchResult LaunchDropout(StreamHandle stream, const RandomParams& params, uint32_t threshold,
                           float scale, int64_t count, const T* x, T* y);
template <typename T>
LaunchResult LaunchRandomUniform(StreamHandle stream, const RandomParams& params, int64_t count,
                                 T* y);
template <typename T>
LaunchResult LaunchRandomNormal(StreamHandle stream, const RandomParams& params, int64_t count,
                                T* y);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_DRAWS_H_
