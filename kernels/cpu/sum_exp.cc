#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

template <typename T>
class SumExp : public CpuKernel {
  using A = Arith<T>;

 public:
  SumExp(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    const T* max = Input<T>(args, 1);
    A* y = Output<A>(args, 0);
    const bool adds = AddsToOutputs(args);
    pool_.ParallelFor(rows_.count, GrainRows(rows_.size), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const auto m = Broadcast(max[row]);
        const A sum = static_cast<A>(SumOf<T>(
            rows_.size, [&](auto v) { return Exp(v - m); }, x + row * rows_.size));
        y[row] = adds ? y[row] + sum : sum;
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

}  // namespace

KernelDef SumExpKernel() {
  return {.create = CreateKernel<SumExp, AllFloats>, .supports_accumulate = true};
}

}  // namespace penstock::kernels
