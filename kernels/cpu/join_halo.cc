// join_halo(tile, parts) {axis, sizes}: the window of a tensor that consists of a part of the tile
// that is there and of what has been received, in the order of the axis. `parts` holds the received
// ranges, of `sizes` along the axis, one after another.

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/halo_window.h"

namespace penstock::kernels {
namespace {

template <typename T>
class JoinHalo : public CpuKernel {
 public:
  JoinHalo(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const HaloWindow halo = HaloWindowOf(spec);
    const TileDesc& window = spec.outputs[0];
    is_whole_ = halo.is_whole;
    parts_ = PlanPack(window, halo.axis, halo.sizes, /*to_packed=*/false, halo.starts);
    if (halo.own_size == 0) return;
    const Shape tile_strides = RowMajorStrides(spec.inputs[0].shape);
    const Shape strides = RowMajorStrides(window.shape);
    Shape shape = window.shape;
    shape[halo.axis] = halo.own_size;
    own_.push_back({StridedCopy(shape, tile_strides, strides),
                    halo.own_in_tile * tile_strides[halo.axis],
                    halo.own_in_window * strides[halo.axis]});
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
