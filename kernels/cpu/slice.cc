#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

// A dimension that is split over devices is not cut (start 0, stride 1), so starts are local.
template <typename T>
class Slice : public CpuKernel {
 public:
  Slice(const KernelSpec& spec, Device& device) : CpuKernel(spec, device), copy_(Plan(spec)) {
    const Shape start = spec.attributes.GetInts("start");
    const Shape strides = RowMajorStrides(spec.inputs[0].shape);
    for (size_t i = 0; i < start.size(); ++i) offset_ += start[i] * strides[i];
  }

  absl::Status Run(const KernelArgs& args) override {
    copy_.Run(pool_, Input<T>(args, 0) + offset_, Output<T>(args, 0));
    return absl::OkStatus();
  }

 private:
  static StridedCopy Plan(const KernelSpec& spec) {
    const Shape step = spec.attributes.GetInts("stride");
    Shape strides = RowMajorStrides(spec.inputs[0].shape);
    for (size_t i = 0; i < step.size(); ++i) strides[i] *= step[i];
    return StridedCopy(spec.outputs[0].shape, strides, RowMajorStrides(spec.outputs[0].shape));
  }

  StridedCopy copy_;
  int64_t offset_ = 0;
};

}  // namespace

KernelDef SliceKernel() { return {.create = CreateBySize<Slice>}; }

}  // namespace penstock::kernels
