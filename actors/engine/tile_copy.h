// Moves a tile between a host tensor and the contiguous memory that a device holds it in.
//
// Example: the tile {shape [2, 3], offset [0, 3], microbatch_stride [2, 0]} of a tensor [4, 6] is,
// for micro-batch 1, the rows 2 and 3, columns 3 to 5: two runs of three elements.
//
// Thread rule: values; const methods are safe from many threads on different memory.

#ifndef PENSTOCK_ACTORS_ENGINE_TILE_COPY_H_
#define PENSTOCK_ACTORS_ENGINE_TILE_COPY_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "graph/kernel_spec.h"

namespace penstock::actors {

// An error unless the tile's shapes are sound and of one rank, and it lies in its tensor for each
// micro-batch below `num_microbatches`. Offset and stride may be left empty: zero.
absl::Status CheckTile(const graph::TileDesc& tile, int64_t num_microbatches);

// The runs of one tile; see the example at the top. `microbatch` chooses the tile's place.
class TileCopy {
 public:
  // REQUIRES: CheckTile(tile) is OK.
  explicit TileCopy(const graph::TileDesc& tile);

  // Calls `run` for every maximal run of elements that is contiguous on both sides.
  void ForEachRun(
      int64_t microbatch,
      absl::FunctionRef<void(int64_t global_index, int64_t tile_index, int64_t count)> run) const;

  // Copies the tile out of the tensor. REQUIRES: micro-batch below the number checked; memory of
  // the tile's and its tensor's size.
  void FromGlobal(const void* global, void* tile, int64_t microbatch) const;
  // The other way: copies the tile into the tensor. REQUIRES: likewise.
  void ToGlobal(const void* tile, void* global, int64_t microbatch) const;

  // The same of `size` bytes of the tile from `offset` on alone, which lie in `bytes`.
  // REQUIRES, of these three: offset + size is at most the tile's size.
  void RangeFromGlobal(const void* global, int64_t microbatch, int64_t offset, int64_t size,
                       void* bytes) const;
  // The other way. REQUIRES: likewise.
  void RangeToGlobal(const void* bytes, int64_t microbatch, int64_t offset, int64_t size,
                     void* global) const;
  // Calls `run` for every run of a range, counted in bytes of the tensor and of the range.
  void ForEachRunOf(
      int64_t microbatch, int64_t offset, int64_t size,
      absl::FunctionRef<void(int64_t global_offset, int64_t offset, int64_t count)> run) const;

 private:
  // From the run at `index` and `global` to the next. REQUIRES: there is one.
  void Advance(Shape* index, int64_t* global) const;

  Shape counts_;   // extents of the dimensions outside a run
  Shape strides_;  // of those in the tensor, in elements
  int64_t run_ = 1;
  int64_t first_ = 0;              // global index of the tile's first element
  int64_t microbatch_stride_ = 0;  // in elements
  int64_t element_bytes_ = 1;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_TILE_COPY_H_
