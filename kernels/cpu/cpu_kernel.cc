#include "kernels/cpu/cpu_kernel.h"

#include "fmt/format.h"

namespace penstock::kernels {

absl::Status UnsupportedDType(std::string_view op, DType dtype) {
  return absl::UnimplementedError(
      fmt::format("the cpu has no kernel for {} on {}", op, Name(dtype)));
}

absl::Status CheckDevice(const KernelSpec& spec, Device& device) {
  if (device.thread_pool() != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "the cpu kernel for {} needs a device with host threads, and the {} device has none", spec.op,
      device.kind()));
}

TileIndex::TileIndex(const TileDesc& tile) : tile_(tile), global_strides_(tile.shape) {
  int64_t stride = 1;
  for (int i = Rank(tile) - 1; i >= 0; --i) {
    // Dimension i extends the run while everything inside it is whole.
    if (run_length_ == stride) run_length_ *= tile.shape[i];
    global_strides_[i] = stride;
    stride *= GlobalExtent(tile, i);
  }
  if (run_length_ < 1) run_length_ = 1;
}

int64_t TileIndex::GlobalIndex(int64_t position, int64_t microbatch) const {
  int64_t index = 0;
  for (int i = Rank(tile_) - 1; i >= 0; --i) {
    const int64_t extent = tile_.shape[i];
    const int64_t coordinate = extent > 0 ? position % extent : 0;
    position = extent > 0 ? position / extent : 0;
    index += (TileBegin(tile_, i, microbatch) + coordinate) * global_strides_[i];
  }
  return index;
}

absl::Status CheckIndexDType(std::string_view op, DType dtype) {
  if (IsInteger(dtype)) return absl::OkStatus();
  return absl::UnimplementedError(
      fmt::format("the cpu kernel for {} takes integers as indices, not {}", op, Name(dtype)));
}

absl::Status CheckIndices(std::string_view op, const IndexReader& indices, int64_t count,
                          int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] >= limit) {
      return absl::InvalidArgumentError(
          fmt::format("{}: index {} lies outside [0, {})", op, indices[i], limit));
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::kernels
