#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class MaxPool2d : public PoolingKernel {
 public:
  MaxPool2d(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.outputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane) {
      const T* x = Input<T>(args, 0) + plane * in_size();
      T* y = Output<T>(args, 0) + plane * out_size();
      ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
        y[i] = x[LargestOf(x, in_[1], rows, columns)];
      });
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef MaxPool2dKernel() { return {.create = CreateKernel<MaxPool2d, Floats>}; }

}  // namespace penstock::kernels
