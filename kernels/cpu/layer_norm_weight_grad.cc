#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// dscale = sum over rows of dy (x - mean) rstd; dbias = sum over rows of dy.
template <typename T>
class LayerNormWeightGrad : public CpuKernel {
  using A = Arith<T>;

 public:
  LayerNormWeightGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t n = rows_.size;
    const A* means = Input<A>(args, 2);
    const A* rstds = Input<A>(args, 3);
    const int64_t piece = ColumnPiece(n, pool_.size());
    const int64_t pieces = (n + piece - 1) / piece;
    pool_.ParallelFor(pieces, GrainRows(rows_.count * piece), [&](int64_t begin, int64_t end, int) {
      struct Row {
        const T* dy;
        const T* x;
        A mean;
        A rstd;
      };
      alignas(kVecBytes) double dscale[kMaxColumnPiece];
      alignas(kVecBytes) double dbias[kMaxColumnPiece];
      for (int64_t first = begin * piece; first < std::min(end * piece, n); first += piece) {
        const int64_t count = std::min(piece, n - first);
        std::fill(dscale, dscale + count, 0.0);
        std::fill(dbias, dbias + count, 0.0);
        AddColumnSumsOfTensors<A>(
            n, rows_.count, count,
            [&](int64_t i) {
              return Row{Input<T>(args, 0) + i * n + first, Input<T>(args, 1) + i * n + first,
                         means[i], rstds[i]};
            },
            [](const Row& row, int64_t j, auto memory) {
              const Vec<T> d = memory.Load(row.dy + j);
              const Vec<T> v = memory.Load(row.x + j);
              return std::array{d * ((v - row.mean) * row.rstd), d};
            },
            std::array<double*, 2>{dscale, dbias});
        StoreOrAdd(count, AddsToOutputs(args), dscale, Output<A>(args, 0) + first);
        StoreOrAdd(count, AddsToOutputs(args), dbias, Output<A>(args, 1) + first);
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

KernelOr CreateLayerNormWeightGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  // Of operands of 16 bits, results in f32 only.
  if (IsHalf(spec.outputs[0].dtype)) return UnsupportedDType(spec.op, spec.outputs[0].dtype);
  return CreateKernel<LayerNormWeightGrad, FloatsAndBFloat16>(spec, device, stream);
}

}  // namespace

KernelDef LayerNormWeightGradKernel() {
  return {.create = CreateLayerNormWeightGrad, .supports_accumulate = true};
}

}  // namespace penstock::kernels
