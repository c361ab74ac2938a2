#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

StridedCopy PlanTranspose(const KernelSpec& spec) {
  const Shape permutation = spec.attributes.GetInts("permutation");
  const Shape input_strides = RowMajorStrides(spec.inputs[0].shape);
  Shape strides;
  for (int64_t dim : permutation) strides.push_back(input_strides[dim]);
  return StridedCopy(spec.outputs[0].shape, strides, RowMajorStrides(spec.outputs[0].shape));
}

template <typename T>
class Transpose : public CpuKernel {
 public:
  Transpose(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), copy_(PlanTranspose(spec)) {}

  absl::Status Run(const KernelArgs& args) override {
    copy_.Run(pool_, Input<T>(args, 0), Output<T>(args, 0));
    return absl::OkStatus();
  }

 private:
  StridedCopy copy_;
};

}  // namespace

KernelDef TransposeKernel() { return {.create = CreateBySize<Transpose>}; }

}  // namespace penstock::kernels
