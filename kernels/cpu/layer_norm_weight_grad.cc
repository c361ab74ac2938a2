#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/rows.h"

namespace penstock::kernels {
namespace {

// dscale = sum over rows of dy (x - mean) rstd; dbias = sum over rows of dy.
template <typename T>
class LayerNormWeightGrad : public CpuKernel {
 public:
  LayerNormWeightGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t n = rows_.size;
    const T* means = Input<T>(args, 2);
    const T* rstds = Input<T>(args, 3);
    const int64_t piece = ColumnPiece(n, pool_.size());
    const int64_t pieces = (n + piece - 1) / piece;
    pool_.ParallelFor(pieces, GrainRows(rows_.count * piece), [&](int64_t begin, int64_t end, int) {
      alignas(kVecBytes) T dscale[kMaxColumnPiece];
      alignas(kVecBytes) T dbias[kMaxColumnPiece];
      for (int64_t first = begin * piece; first < std::min(end * piece, n); first += piece) {
        const int64_t count = std::min(piece, n - first);
        std::fill(dscale, dscale + count, T{});
        std::fill(dbias, dbias + count, T{});
        for (int64_t row = 0; row < rows_.count; ++row) {
          const T* dy = Input<T>(args, 0) + row * n + first;
          const T* x = Input<T>(args, 1) + row * n + first;
          const auto m = Splat(means[row]);
          const auto r = Splat(rstds[row]);
          Map(
              count, [&](auto sum, auto d, auto v) { return sum + d * ((v - m) * r); }, dscale,
              dscale, dy, x);
          Map(
              count, [](auto sum, auto d) { return sum + d; }, dbias, dbias, dy);
        }
        StoreOrAdd(count, AddsToOutputs(args), dscale, Output<T>(args, 0) + first);
        StoreOrAdd(count, AddsToOutputs(args), dbias, Output<T>(args, 1) + first);
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

}  // namespace

KernelDef LayerNormWeightGradKernel() {
  return {.create = CreateKernel<LayerNormWeightGrad, Floats>, .supports_accumulate = true};
}

}  // namespace penstock::kernels
