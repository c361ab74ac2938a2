// Where the window of dynamic_slice and dynamic_update_slice starts.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_DYNAMIC_WINDOW_H_
#define PENSTOCK_KERNELS_CPU_DYNAMIC_WINDOW_H_

#include <algorithm>
#include <cstdint>

#include "kernels/kernel.h"

namespace penstock::kernels {

// Offset in elements, inside the tile `whole`, of a window of `window`'s shape whose starts are
// clamped so that it fits. A dimension that is split over devices is as long in both, so its start
// clamps to 0.
inline int64_t WindowOffset(const TileDesc& whole, const TileDesc& window, const int64_t* start) {
  int64_t offset = 0;
  int64_t stride = 1;
  for (int i = static_cast<int>(whole.shape.size()) - 1; i >= 0; --i) {
    const int64_t last = std::max<int64_t>(whole.shape[i] - window.shape[i], 0);
    offset += std::clamp<int64_t>(start[i], 0, last) * stride;
    stride *= whole.shape[i];
  }
  return offset;
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_DYNAMIC_WINDOW_H_
