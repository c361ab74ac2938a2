// The arithmetic of tiles: where the tile of a device lies in its tensor.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_TILE_H_
#define PENSTOCK_KERNELS_TILE_H_

#include <cstdint>

#include "kernels/kernel.h"

namespace penstock::kernels {

// Global index of the tile's first element in dimension `dim`.
inline int64_t TileBegin(const TileDesc& tile, int dim, int64_t microbatch) {
  int64_t begin = tile.offset.empty() ? 0 : tile.offset[dim];
  if (!tile.microbatch_stride.empty()) begin += microbatch * tile.microbatch_stride[dim];
  return begin;
}

// The tensor's extent; `global` empty means that the tile is the whole tensor.
inline int64_t GlobalExtent(const TileDesc& tile, int dim) {
  return tile.global.empty() ? tile.shape[dim] : tile.global[dim];
}

// Dimensions of the tile, which its tensor has, too.
inline int Rank(const TileDesc& tile) { return static_cast<int>(tile.shape.size()); }

// `axis` counted from the end when negative.
inline int NormalizeAxis(int64_t axis, int rank) {
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_TILE_H_
