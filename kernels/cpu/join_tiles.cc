// join_tiles(parts...): the tile of the result, which consists of the parts, each at its place in
// the tensor. What several devices of another mesh have sent is put together in this way.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tile_window.h"

namespace penstock::kernels {
namespace {

template <typename T>
class JoinTiles : public CpuKernel {
 public:
  JoinTiles(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const Shape strides = RowMajorStrides(spec.outputs[0].shape);
    for (const TileDesc& part : spec.inputs) {
      copies_.emplace_back(part.shape, RowMajorStrides(part.shape), strides);
    }
  }

  absl::Status Run(const KernelArgs& args) override {
    for (size_t i = 0; i < copies_.size(); ++i) {
      ASSIGN_OR_RETURN(const int64_t offset,
                       OffsetInTile(spec_.op, spec_.outputs[0], spec_.inputs[i], args.microbatch));
      copies_[i].Run(pool_, Input<T>(args, i), Output<T>(args, 0) + offset);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<StridedCopy> copies_;  // of each part
};

bool Overlap(const TileDesc& a, const TileDesc& b) {
  for (int i = 0; i < Rank(a); ++i) {
    const int64_t begin = std::max(TileBegin(a, i, 0), TileBegin(b, i, 0));
    const int64_t end = std::min(TileBegin(a, i, 0) + a.shape[i], TileBegin(b, i, 0) + b.shape[i]);
    if (begin >= end) return false;
  }
  return true;
}

KernelOr CreateJoinTiles(const KernelSpec& spec, Device& device, Stream& stream) {
  const TileDesc& whole = spec.outputs[0];
  int64_t num_elements = 0;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const TileDesc& part = spec.inputs[i];
    if (part.dtype != whole.dtype || Rank(part) != Rank(whole)) {
      return absl::InvalidArgumentError(fmt::format("{}: part {} is {}{} of {}{}", spec.op, i,
                                                    Name(part.dtype), ToString(part.shape),
                                                    Name(whole.dtype), ToString(whole.shape)));
    }
    for (size_t j = 0; j < i; ++j) {
      if (!Overlap(spec.inputs[j], part)) continue;
      return absl::InvalidArgumentError(fmt::format("{}: parts {} and {} overlap", spec.op, j, i));
    }
    num_elements += part.num_elements();
  }
  if (num_elements != whole.num_elements()) {
    return absl::InvalidArgumentError(fmt::format("{}: the parts have {} elements of {}", spec.op,
                                                  num_elements, whole.num_elements()));
  }
  return CreateBySize<JoinTiles>(spec, device, stream);
}

}  // namespace

KernelDef JoinTilesKernel() { return {.create = CreateJoinTiles}; }

}  // namespace penstock::kernels
