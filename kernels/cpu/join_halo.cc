// join_halo(tile, parts) {axis, sizes}: the window of a tensor that consists of a part of the tile
// that is there and of what has been received, in the order of the axis. `parts` holds the received
// ranges, of `sizes` along the axis, one after another.

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

template <typename T>
class JoinHalo : public CpuKernel {
 public:
  JoinHalo(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const TileDesc& tile = spec.inputs[0];
    const TileDesc& window = spec.outputs[0];
    const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(window));
    const Shape sizes = spec.attributes.GetInts("sizes");
    const Shape tile_strides = RowMajorStrides(tile.shape);
    const Shape strides = RowMajorStrides(window.shape);
    const int64_t window_begin = TileBegin(window, axis, 0);
    const int64_t window_end = window_begin + window.shape[axis];
    const int64_t begin = std::max(TileBegin(tile, axis, 0), window_begin);
    const int64_t end = std::min(TileBegin(tile, axis, 0) + tile.shape[axis], window_end);
    // The window's positions that the parts take: those that are not the tile's.
    Shape starts;
    int64_t next = window_begin;
    for (const int64_t size : sizes) {
      if (begin < end && next == begin) next = end;
      starts.push_back(next - window_begin);
      next += size;
    }
    if (begin < end && next == begin) next = end;
    is_whole_ = next == window_end;
    parts_ = PlanPack(window, axis, sizes, /*to_packed=*/false, starts);
    if (begin >= end) return;
    Shape shape = window.shape;
    shape[axis] = end - begin;
    own_.push_back({StridedCopy(shape, tile_strides, strides),
                    (begin - TileBegin(tile, axis, 0)) * tile_strides[axis],
                    (begin - window_begin) * strides[axis]});
  }

  absl::Status Run(const KernelArgs& args) override {
    if (!is_whole_) {
      return absl::InternalError("join_halo: the tile and the parts do not make up the window");
    }
    for (const Own& own : own_) {
      own.copy.Run(pool_, Input<T>(args, 0) + own.tile_offset,
                   Output<T>(args, 0) + own.window_offset);
    }
    for (const PackedPart& part : parts_) {
      part.copy.Run(pool_, Input<T>(args, 1) + part.packed_offset,
                    Output<T>(args, 0) + part.tile_offset);
    }
    return absl::OkStatus();
  }

 private:
  struct Own {
    StridedCopy copy;
    int64_t tile_offset = 0;
    int64_t window_offset = 0;
  };
  std::vector<Own> own_;  // one, or none
  std::vector<PackedPart> parts_;
  bool is_whole_ = true;
};

}  // namespace

KernelDef JoinHaloKernel() { return {.create = CreateBySize<JoinHalo>}; }

}  // namespace penstock::kernels
