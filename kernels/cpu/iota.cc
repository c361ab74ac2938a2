#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

// Each element is its global index along the axis.
template <typename T>
class Iota : public CpuKernel {
 public:
  Iota(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        axis_(NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(spec.outputs[0]))) {
    for (int i = axis_ + 1; i < Rank(spec.outputs[0]); ++i) inner_ *= spec.outputs[0].shape[i];
  }

  absl::Status Run(const KernelArgs& args) override {
    T* y = Output<T>(args, 0);
    const TileDesc& tile = spec_.outputs[0];
    const int64_t extent = tile.shape[axis_];
    const int64_t first = TileBegin(tile, axis_, args.microbatch);
    pool_.ParallelFor(tile.num_elements(), kGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) y[i] = static_cast<T>(first + i / inner_ % extent);
    });
    return absl::OkStatus();
  }

 private:
  int axis_;
  int64_t inner_ = 1;  // elements of one step along the axis
};

}  // namespace

KernelDef IotaKernel() { return {.create = CreateKernel<Iota, Numbers>}; }

}  // namespace penstock::kernels
