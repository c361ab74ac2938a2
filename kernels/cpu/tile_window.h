// Where one tile of a tensor lies inside another.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_TILE_WINDOW_H_
#define PENSTOCK_KERNELS_CPU_TILE_WINDOW_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "fmt/format.h"

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {

// Offset in elements of the first element of `inner` inside `outer` in `microbatch`, 0 for an empty
// tile; kInternal unless `outer` covers `inner`.
inline absl::StatusOr<int64_t> OffsetInTile(std::string_view op, const TileDesc& outer,
                                            const TileDesc& inner, int64_t microbatch) {
  if (inner.num_elements() == 0) return 0;
  int64_t offset = 0;
  int64_t stride = 1;
  for (int i = Rank(outer) - 1; i >= 0; --i) {
    const int64_t begin = TileBegin(inner, i, microbatch) - TileBegin(outer, i, microbatch);
    if (begin < 0 || begin + inner.shape[i] > outer.shape[i]) {
      return absl::InternalError(
          fmt::format("{}: the tile {} at {} of dimension {} is not inside a tile of {}", op,
                      ToString(inner.shape), begin, i, ToString(outer.shape)));
    }
    offset += begin * stride;
    stride *= outer.shape[i];
  }
  return offset;
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_TILE_WINDOW_H_
