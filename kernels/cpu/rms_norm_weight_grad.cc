#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// dscale = sum over rows of dy x rstd.
template <typename T>
class RmsNormWeightGrad : public CpuKernel {
  using A = Arith<T>;

 public:
  RmsNormWeightGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t n = rows_.size;
    const A* rstds = Input<A>(args, 2);
    const int64_t piece = ColumnPiece(n, pool_.size());
    const int64_t pieces = (n + piece - 1) / piece;
    pool_.ParallelFor(pieces, GrainRows(rows_.count * piece), [&](int64_t begin, int64_t end, int) {
      struct Row {
        const T* dy;
        const T* x;
        A rstd;
      };
      alignas(kVecBytes) double dscale[kMaxColumnPiece];
      for (int64_t first = begin * piece; first < std::min(end * piece, n); first += piece) {
        const int64_t count = std::min(piece, n - first);
        std::fill(dscale, dscale + count, 0.0);
        AddColumnSumsOfTensors<A>(
            n, rows_.count, count,
            [&](int64_t i) {
              return Row{Input<T>(args, 0) + i * n + first, Input<T>(args, 1) + i * n + first,
                         rstds[i]};
            },
            [](const Row& row, int64_t j, auto memory) {
              return std::array{memory.Load(row.dy + j) * (memory.Load(row.x + j) * row.rstd)};
            },
            std::array<double*, 1>{dscale});
        StoreOrAdd(count, AddsToOutputs(args), dscale, Output<A>(args, 0) + first);
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

KernelOr CreateRmsNormWeightGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  // Of operands of 16 bits, results in f32 only.
  if (IsHalf(spec.outputs[0].dtype)) return UnsupportedDType(spec.op, spec.outputs[0].dtype);
  return CreateKernel<RmsNormWeightGrad, FloatsAndBFloat16>(spec, device, stream);
}

}  // namespace

KernelDef RmsNormWeightGradKernel() {
  return {.create = CreateRmsNormWeightGrad, .supports_accumulate = true};
}

}  // namespace penstock::kernels
