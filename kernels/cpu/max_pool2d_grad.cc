#include <algorithm>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class MaxPool2dGrad : public PoolingKernel {
 public:
  MaxPool2dGrad(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.inputs[1]) {}

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane) {
      const T* x = Input<T>(args, 0) + plane * in_size();
      const T* dy = Input<T>(args, 1) + plane * out_size();
      T* dx = Output<T>(args, 0) + plane * in_size();
      std::fill(dx, dx + in_size(), T{0});
      ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
        dx[LargestOf(x, in_[1], rows, columns)] += dy[i];
      });
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef MaxPool2dGradKernel() { return {.create = CreateKernel<MaxPool2dGrad, Floats>}; }

}  // namespace penstock::kernels
