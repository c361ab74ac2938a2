#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// With h = (x - mean) rstd and g = dy scale: dx = rstd (g - mean(g) - h mean(g h)), and the
// addend.
template <typename T>
class LayerNormGrad : public CpuKernel {
 public:
  LayerNormGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t n = rows_.size;
    const double share = 1.0 / static_cast<double>(n);
    const T* scale = Input<T>(args, 2);
    const T* addend = args.inputs.size() > 5 ? Input<T>(args, 5) : nullptr;
    pool_.ParallelFor(rows_.count, GrainRows(n), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const T* dy = Input<T>(args, 0) + row * n;
        const T* x = Input<T>(args, 1) + row * n;
        T* dx = Output<T>(args, 0) + row * n;
        const auto m = Splat(Input<Arith<T>>(args, 3)[row]);
        const auto r = Splat(Input<Arith<T>>(args, 4)[row]);
        const double sum_g = SumOf<T>(
            n, [](auto d, auto s) { return d * s; }, dy, scale);
        const double sum_gh = SumOf<T>(
            n, [&](auto d, auto s, auto v) { return d * s * ((v - m) * r); }, dy, scale, x);
        const auto mean_g = Splat(static_cast<Arith<T>>(sum_g * share));
        const auto mean_gh = Splat(static_cast<Arith<T>>(sum_gh * share));
        Map(
            n, [&](auto d, auto s, auto v) { return r * (d * s - mean_g - (v - m) * r * mean_gh); },
            dx, dy, scale, x);
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

bool CanAliasLayerNormGrad(const KernelSpec& spec, int input) {
  return input <= 1 && CanAliasElementwise(spec, input);
}

}  // namespace

KernelDef LayerNormGradKernel() {
  return {.create = CreateKernel<LayerNormGrad, FloatsAndBFloat16>,
          .can_alias = CanAliasLayerNormGrad};
}

}  // namespace penstock::kernels
