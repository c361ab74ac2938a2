#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class MaxPool2d : public MaxPoolingKernel<T> {
 public:
  MaxPool2d(const KernelSpec& spec, Device& device)
      : MaxPoolingKernel<T>(spec, device, spec.inputs[0], spec.outputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    this->ForEachPlane([&](int64_t plane) {
      const T* x = Input<T>(args, 0) + plane * this->in_size();
      T* y = Output<T>(args, 0) + plane * this->out_size();
      this->ForEachLargest(x, [&](int64_t first, int64_t count, const auto& largest) {
        for (int64_t k = 0; k < count; ++k) y[first + k] = x[largest.places[k]];
      });
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef MaxPool2dKernel() { return {.create = CreateKernel<MaxPool2d, Floats>}; }

}  // namespace penstock::kernels
