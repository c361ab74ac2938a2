#include <cmath>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

template <typename T>
class RmsNorm : public CpuKernel {
  using A = Arith<T>;

 public:
  RmsNorm(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        rows_(RowsOf(spec.inputs[0])),
        epsilon_(spec.attributes.GetDouble("epsilon", 1e-5)) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t n = rows_.size;
    const double share = 1.0 / static_cast<double>(n);
    A* rstds = args.outputs.size() > 1 ? Output<A>(args, 1) : nullptr;
    pool_.ParallelFor(rows_.count, GrainRows(n), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = Input<T>(args, 0) + row * n;
        const A square = static_cast<A>(SumOf<T>(
                                            n, [](auto v) { return v * v; }, x) *
                                        share);
        const A rstd = 1 / std::sqrt(square + static_cast<A>(epsilon_));
        const auto r = Splat(rstd);
        Map(
            n, [&](auto v, auto s) { return v * r * s; }, Output<T>(args, 0) + row * n, x,
            Input<T>(args, 1));
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

KernelDef RmsNormKernel() {
  return {.create = CreateKernel<RmsNorm, FloatsAndBFloat16>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
