#include "kernels/cpu/pack.h"

namespace penstock::kernels {
namespace {

// With `starts` the parts are any ranges of the axis, otherwise they follow each other.
template <typename T>
class Pack : public CpuKernel {
 public:
  Pack(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const TileDesc& tile = spec.inputs[0];
    const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(tile));
    const Shape sizes = spec.attributes.GetInts("sizes");
    const Shape starts = spec.attributes.GetInts("starts");
    for (size_t i = 0; i < starts.size(); ++i) {
      is_inside_ &= i < sizes.size() && starts[i] >= 0 && sizes[i] >= 0 &&
                    starts[i] <= tile.shape[axis] && sizes[i] <= tile.shape[axis] - starts[i];
    }
    parts_ = PlanPack(tile, axis, sizes, /*to_packed=*/true, starts);
  }

  absl::Status Run(const KernelArgs& args) override {
    if (!is_inside_) return absl::InternalError("pack: a range does not lie inside the tile");
    for (const PackedPart& part : parts_) {
      part.copy.Run(pool_, Input<T>(args, 0) + part.tile_offset,
                    Output<T>(args, 0) + part.packed_offset);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<PackedPart> parts_;
  bool is_inside_ = true;
};

}  // namespace

KernelDef PackKernel() { return {.create = CreateBySize<Pack>}; }

}  // namespace penstock::kernels
