#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/dynamic_window.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

template <typename T>
class DynamicSlice : public CpuKernel {
 public:
  DynamicSlice(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        copy_(spec.outputs[0].shape, RowMajorStrides(spec.inputs[0].shape),
              RowMajorStrides(spec.outputs[0].shape)) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t offset = WindowOffset(spec_.inputs[0], spec_.outputs[0], Input<int64_t>(args, 1));
    copy_.Run(pool_, Input<T>(args, 0) + offset, Output<T>(args, 0));
    return absl::OkStatus();
  }

 private:
  StridedCopy copy_;
};

}  // namespace

KernelDef DynamicSliceKernel() { return {.create = CreateBySize<DynamicSlice>}; }

}  // namespace penstock::kernels
