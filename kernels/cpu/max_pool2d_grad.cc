#include <algorithm>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class MaxPool2dGrad : public MaxPoolingKernel<T> {
 public:
  MaxPool2dGrad(const KernelSpec& spec, Device& device)
      : MaxPoolingKernel<T>(spec, device, spec.inputs[0], spec.inputs[1]) {}

  absl::Status Run(const KernelArgs& args) override {
    this->ForEachPlane([&](int64_t plane) {
      const T* x = Input<T>(args, 0) + plane * this->in_size();
      const T* dy = Input<T>(args, 1) + plane * this->out_size();
      T* dx = Output<T>(args, 0) + plane * this->in_size();
      std::fill(dx, dx + this->in_size(), T{0});
      this->ForEachLargest(x, [&](int64_t first, int64_t count, const auto& largest) {
        for (int64_t k = 0; k < count; ++k) dx[largest.places[k]] += dy[first + k];
      });
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef MaxPool2dGradKernel() { return {.create = CreateKernel<MaxPool2dGrad, Floats>}; }

}  // namespace penstock::kernels
