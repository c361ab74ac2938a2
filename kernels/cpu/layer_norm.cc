#include <cmath>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// Two passes over a row that the first one has brought into the cache: no cancellation.
template <typename T>
class LayerNorm : public CpuKernel {
  using A = Arith<T>;

 public:
  LayerNorm(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        rows_(RowsOf(spec.inputs[0])),
        epsilon_(spec.attributes.GetDouble("epsilon", 1e-5)) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t n = rows_.size;
    const double share = 1.0 / static_cast<double>(n);
    const T* scale = Input<T>(args, 1);
    const T* bias = Input<T>(args, 2);
    A* means = args.outputs.size() > 1 ? Output<A>(args, 1) : nullptr;
    A* rstds = args.outputs.size() > 2 ? Output<A>(args, 2) : nullptr;
    pool_.ParallelFor(rows_.count, GrainRows(n), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = Input<T>(args, 0) + row * n;
        const A mean = static_cast<A>(SumOf<T>(
                                          n, [](auto v) { return v; }, x) *
                                      share);
        const auto m = Splat(mean);
        const A variance = static_cast<A>(SumOf<T>(
                                              n, [&](auto v) { return (v - m) * (v - m); }, x) *
                                          share);
        const A rstd = 1 / std::sqrt(variance + static_cast<A>(epsilon_));
        const auto r = Splat(rstd);
        Map(
            n, [&](auto v, auto s, auto b) { return (v - m) * r * s + b; },
            Output<T>(args, 0) + row * n, x, scale, bias);
        if (means != nullptr) means[row] = mean;
        if (rstds != nullptr) rstds[row] = rstd;
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
  double epsilon_;
};

}  // namespace

KernelDef LayerNormKernel() {
  return {.create = CreateKernel<LayerNorm, FloatsAndBFloat16>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
