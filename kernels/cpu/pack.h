// The layouts between which pack and unpack move: a tile [.., sum(sizes), ..], and its parts along
// the axis, each contiguous, one after another.
//
// Thread rule: values.

#ifndef PENSTOCK_KERNELS_CPU_PACK_H_
#define PENSTOCK_KERNELS_CPU_PACK_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {

struct PackedPart {
  StridedCopy copy;
  int64_t tile_offset = 0;
  int64_t packed_offset = 0;
};

// `to_packed`: copies go from the tile to the parts, otherwise back. `starts`: where each part
// begins in the tile; empty: where the one before ends.
inline std::vector<PackedPart> PlanPack(const TileDesc& tile, int axis,
                                        absl::Span<const int64_t> sizes, bool to_packed,
                                        absl::Span<const int64_t> starts = {}) {
  std::vector<PackedPart> parts;
  const Shape tile_strides = RowMajorStrides(tile.shape);
  int64_t tile_offset = 0;
  int64_t packed_offset = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = sizes[i];
    if (i < starts.size()) tile_offset = starts[i] * tile_strides[axis];
    Shape shape = tile.shape;
    shape[axis] = size;
    const Shape strides = RowMajorStrides(shape);
    parts.push_back({to_packed ? StridedCopy(shape, tile_strides, strides)
                               : StridedCopy(shape, strides, tile_strides),
                     tile_offset, packed_offset});
    tile_offset += size * tile_strides[axis];
    packed_offset += NumElements(shape);
  }
  return parts;
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_PACK_H_
