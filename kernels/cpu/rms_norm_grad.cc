#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// With h = x rstd and g = dy scale: dx = rstd (g - h mean(g h)), and the addend.
template <typename T>
class RmsNormGrad : public CpuKernel {
 public:
  RmsNormGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t n = rows_.size;
    const double share = 1.0 / static_cast<double>(n);
    const T* scale = Input<T>(args, 2);
    const T* addend = args.inputs.size() > 4 ? Input<T>(args, 4) : nullptr;
    pool_.ParallelFor(rows_.count, GrainRows(n), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const T* dy = Input<T>(args, 0) + row * n;
        const T* x = Input<T>(args, 1) + row * n;
        T* dx = Output<T>(args, 0) + row * n;
        const auto r = Splat(Input<Arith<T>>(args, 3)[row]);
        const double sum_gh = SumOf<T>(
            n, [&](auto d, auto s, auto v) { return d * s * (v * r); }, dy, scale, x);
        const auto mean_gh = Splat(static_cast<Arith<T>>(sum_gh * share));
        Map(
            n, [&](auto d, auto s, auto v) { return r * (d * s - v * r * mean_gh); }, dx, dy, scale,
            x);
        // In a pass of its own, so that the sum has the bits of the operator `add`.
        if (addend != nullptr) {
          Map(
              n, [](auto d, auto a) { return d + a; }, dx, dx, addend + row * n);
        }
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

bool CanAliasRmsNormGrad(const KernelSpec& spec, int input) {
  return input <= 1 && CanAliasElementwise(spec, input);
}

}  // namespace

KernelDef RmsNormGradKernel() {
  return {.create = CreateKernel<RmsNormGrad, FloatsAndBFloat16>, .can_alias = CanAliasRmsNormGrad};
}

}  // namespace penstock::kernels
