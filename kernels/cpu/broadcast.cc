#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

StridedCopy PlanBroadcast(const KernelSpec& spec) {
  const TileDesc& input = spec.inputs[0];
  const Shape axes = spec.attributes.GetInts("axes");
  const Shape input_strides = RowMajorStrides(input.shape);
  Shape strides(spec.outputs[0].shape.size(), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (input.shape[i] == spec.outputs[0].shape[axes[i]]) strides[axes[i]] = input_strides[i];
  }
  return StridedCopy(spec.outputs[0].shape, strides, RowMajorStrides(spec.outputs[0].shape));
}

template <typename T>
class BroadcastCopy : public CpuKernel {
 public:
  BroadcastCopy(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), copy_(PlanBroadcast(spec)) {}

  absl::Status Run(const KernelArgs& args) override {
    copy_.Run(pool_, Input<T>(args, 0), Output<T>(args, 0));
    return absl::OkStatus();
  }

 private:
  StridedCopy copy_;
};

}  // namespace

KernelDef BroadcastKernel() { return {.create = CreateBySize<BroadcastCopy>}; }

}  // namespace penstock::kernels
