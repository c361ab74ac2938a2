// What join_halo puts together: the window of a tensor, of which a device's tile covers a part and
// received ranges the rest.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_HALO_WINDOW_H_
#define PENSTOCK_KERNELS_HALO_WINDOW_H_

#include <algorithm>
#include <cstdint>

#include "base/shape.h"
#include "kernels/kernel.h"
#include "kernels/tile.h"

namespace penstock::kernels {

struct HaloWindow {
  int axis = 0;
  Shape sizes;   // of the received ranges along the axis
  Shape starts;  // where each begins in the window
  // What the tile has of the window.
  int64_t own_size = 0;
  int64_t own_in_tile = 0;  // where it begins
  int64_t own_in_window = 0;
  bool is_whole = false;  // whether the tile and the ranges make up the window
};

// Operand 0 is the tile, result 0 the window.
inline HaloWindow HaloWindowOf(const KernelSpec& spec) {
  const TileDesc& tile = spec.inputs[0];
  const TileDesc& window = spec.outputs[0];
  HaloWindow halo;
  halo.axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(window));
  halo.sizes = spec.attributes.GetInts("sizes");
  const int64_t tile_begin = TileBegin(tile, halo.axis, 0);
  const int64_t window_begin = TileBegin(window, halo.axis, 0);
  const int64_t window_end = window_begin + window.shape[halo.axis];
  const int64_t begin = std::max(tile_begin, window_begin);
  const int64_t end = std::min(tile_begin + tile.shape[halo.axis], window_end);
  halo.own_size = std::max<int64_t>(end - begin, 0);
  halo.own_in_tile = begin - tile_begin;
  halo.own_in_window = begin - window_begin;
  // The ranges take the window's positions that are not the tile's.
  int64_t next = window_begin;
  for (const int64_t size : halo.sizes) {
    if (halo.own_size > 0 && next == begin) next = end;
    if (size < 0 || (halo.own_size > 0 && next < begin && size > begin - next)) return halo;
    halo.starts.push_back(next - window_begin);
    next += size;
  }
  if (halo.own_size > 0 && next == begin) next = end;
  halo.is_whole = next == window_end;
  return halo;
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_HALO_WINDOW_H_
