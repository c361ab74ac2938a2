#include "kernels/cpu/copy.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/dynamic_window.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

template <typename T>
class DynamicUpdateSlice : public CpuKernel {
 public:
  DynamicUpdateSlice(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        copy_(spec.inputs[1].shape, RowMajorStrides(spec.inputs[1].shape),
              RowMajorStrides(spec.outputs[0].shape)) {}

  absl::Status Run(const KernelArgs& args) override {
    T* y = Output<T>(args, 0);
    CopyBytes(pool_, args.inputs[0], y, spec_.outputs[0].num_bytes());
    const int64_t offset = WindowOffset(spec_.outputs[0], spec_.inputs[1], Input<int64_t>(args, 2));
    copy_.Run(pool_, Input<T>(args, 1), y + offset);
    return absl::OkStatus();
  }

 private:
  StridedCopy copy_;
};

}  // namespace

KernelDef DynamicUpdateSliceKernel() {
  return {.create = CreateBySize<DynamicUpdateSlice>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
