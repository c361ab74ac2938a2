#include "actors/engine/tile_copy.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using penstock::ToString;  // stage.h declares another

int64_t At(const Shape& values, size_t dim) { return values.empty() ? 0 : values[dim]; }

}  // namespace

absl::Status CheckTile(const graph::TileDesc& tile, int64_t num_microbatches) {
  RETURN_IF_ERROR(CheckShape(tile.shape));
  RETURN_IF_ERROR(CheckShape(tile.global));
  const size_t rank = tile.shape.size();
  if (tile.global.size() != rank || (!tile.offset.empty() && tile.offset.size() != rank) ||
      (!tile.microbatch_stride.empty() && tile.microbatch_stride.size() != rank)) {
    return absl::InvalidArgumentError("a tile's shapes have different ranks");
  }
  for (size_t dim = 0; dim < rank; ++dim) {
    const int64_t offset = At(tile.offset, dim);
    const int64_t stride = At(tile.microbatch_stride, dim);
    const int64_t room = tile.global[dim] - tile.shape[dim];
    if (offset < 0 || stride < 0 || room < 0 || offset > room ||
        (num_microbatches > 1 && stride > (room - offset) / (num_microbatches - 1))) {
      return absl::InvalidArgumentError(StrCat(
          "a tile ", ToString(tile.shape), " at ", ToString(tile.offset), " + micro-batch * ",
          ToString(tile.microbatch_stride), " does not lie in ", ToString(tile.global)));
    }
  }
  return absl::OkStatus();
}

TileCopy::TileCopy(const graph::TileDesc& tile)
    : element_bytes_(static_cast<int64_t>(ByteSize(tile.dtype))) {
  const Shape strides = RowMajorStrides(tile.global);
  const int rank = static_cast<int>(tile.shape.size());
  for (int dim = 0; dim < rank; ++dim) {
    first_ += At(tile.offset, dim) * strides[dim];
    microbatch_stride_ += At(tile.microbatch_stride, dim) * strides[dim];
  }
  // The run takes in dimensions from the innermost as long as the inner ones are whole.
  int outer = rank;
  while (outer > 0) {
    --outer;
    run_ *= tile.shape[outer];
    if (tile.shape[outer] != tile.global[outer]) break;
  }
  for (int dim = 0; dim < outer; ++dim) {
    counts_.push_back(tile.shape[dim]);
    strides_.push_back(strides[dim]);
  }
}

void TileCopy::ForEachRun(
    int64_t microbatch,
    absl::FunctionRef<void(int64_t global_index, int64_t tile_index, int64_t count)> run) const {
  const int64_t runs = NumElements(counts_);
  if (runs == 0 || run_ == 0) return;
  Shape index(counts_.size(), 0);
  int64_t global = first_ + microbatch * microbatch_stride_;
  for (int64_t i = 0;; ++i) {
    run(global, i * run_, run_);
    if (i + 1 == runs) return;
    Advance(&index, &global);
  }
}

void TileCopy::Advance(Shape* index, int64_t* global) const {
  for (int dim = static_cast<int>(counts_.size()) - 1;; --dim) {
    *global += strides_[dim];
    if (++(*index)[dim] < counts_[dim]) return;
    *global -= counts_[dim] * strides_[dim];
    (*index)[dim] = 0;
  }
}

void TileCopy::ForEachRunOf(
    int64_t microbatch, int64_t offset, int64_t size,
    absl::FunctionRef<void(int64_t global_offset, int64_t offset, int64_t count)> run) const {
  if (size == 0) return;
  const int64_t run_bytes = run_ * element_bytes_;
  // Where the run lies that `offset` is in.
  Shape index(counts_.size(), 0);
  int64_t global = first_ + microbatch * microbatch_stride_;
  int64_t number = offset / run_bytes;
  for (int dim = static_cast<int>(counts_.size()) - 1; dim >= 0; --dim) {
    index[dim] = number % counts_[dim];
    number /= counts_[dim];
    global += index[dim] * strides_[dim];
  }
  int64_t skipped = offset % run_bytes;
  for (int64_t done = 0;;) {
    const int64_t count = std::min(run_bytes - skipped, size - done);
    run(global * element_bytes_ + skipped, done, count);
    done += count;
    if (done == size) return;
    skipped = 0;
    Advance(&index, &global);
  }
}

void TileCopy::RangeFromGlobal(const void* global, int64_t microbatch, int64_t offset, int64_t size,
                               void* bytes) const {
  ForEachRunOf(microbatch, offset, size, [&](int64_t from, int64_t to, int64_t count) {
    std::memcpy(static_cast<std::byte*>(bytes) + to, static_cast<const std::byte*>(global) + from,
                static_cast<size_t>(count));
  });
}

void TileCopy::RangeToGlobal(const void* bytes, int64_t microbatch, int64_t offset, int64_t size,
                             void* global) const {
  ForEachRunOf(microbatch, offset, size, [&](int64_t to, int64_t from, int64_t count) {
    std::memcpy(static_cast<std::byte*>(global) + to, static_cast<const std::byte*>(bytes) + from,
                static_cast<size_t>(count));
  });
}

void TileCopy::FromGlobal(const void* global, void* tile, int64_t microbatch) const {
  ForEachRun(microbatch, [&](int64_t global_index, int64_t tile_index, int64_t count) {
    std::memcpy(static_cast<std::byte*>(tile) + tile_index * element_bytes_,
                static_cast<const std::byte*>(global) + global_index * element_bytes_,
                count * element_bytes_);
  });
}

void TileCopy::ToGlobal(const void* tile, void* global, int64_t microbatch) const {
  ForEachRun(microbatch, [&](int64_t global_index, int64_t tile_index, int64_t count) {
    std::memcpy(static_cast<std::byte*>(global) + global_index * element_bytes_,
                static_cast<const std::byte*>(tile) + tile_index * element_bytes_,
                count * element_bytes_);
  });
}

}  // namespace penstock::actors
