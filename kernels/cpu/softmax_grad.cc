#include <algorithm>

#include "kernels/cpu/softmax.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// dx = y (dy - sum(y dy)).
template <typename T>
class SoftmaxGrad : public CpuKernel {
 public:
  SoftmaxGrad(const KernelSpec& spec, Device& device) : CpuKernel(spec, device), shape_(spec) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* y = Input<T>(args, 0);
    const T* dy = Input<T>(args, 1);
    T* dx = Output<T>(args, 0);
    if (shape_.inner == 1) {
      pool_.ParallelFor(shape_.outer, GrainRows(shape_.n), [&](int64_t begin, int64_t end, int) {
        for (int64_t at = begin * shape_.n; at < end * shape_.n; at += shape_.n) {
          const auto dot = Splat(static_cast<T>(SumOf<T>(
              shape_.n, [](auto a, auto b) { return a * b; }, y + at, dy + at)));
          Map(
              shape_.n, [&](auto a, auto b) { return a * (b - dot); }, dx + at, y + at, dy + at);
        }
      });
      return absl::OkStatus();
    }
    const int64_t piece = ColumnPiece(shape_.inner, pool_.size());
    const int64_t pieces = (shape_.inner + piece - 1) / piece;
    pool_.ParallelFor(shape_.outer * pieces, GrainRows(shape_.n * piece),
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t task = begin; task < end; ++task) {
                          const int64_t first = task % pieces * piece;
                          const int64_t at = task / pieces * shape_.n * shape_.inner + first;
                          Columns(y + at, dy + at, dx + at, std::min(piece, shape_.inner - first));
                        }
                      });
    return absl::OkStatus();
  }

 private:
  void Columns(const T* y, const T* dy, T* dx, int64_t count) const {
    alignas(kVecBytes) double sums[kMaxColumnPiece];
    alignas(kVecBytes) T dot[kMaxColumnPiece];
    std::fill(sums, sums + count, 0.0);
    AddColumnSumsOfTensors<T>(
        shape_.inner, shape_.n, count, [&](int64_t i) { return i * shape_.inner; },
        [&](int64_t at, int64_t j, auto memory) {
          return std::array{memory.Load(y + at + j) * memory.Load(dy + at + j)};
        },
        std::array<double*, 1>{sums});
    StoreOrAdd(count, /*adds=*/false, sums, dot);
    for (int64_t i = 0; i < shape_.n; ++i) {
      const int64_t at = i * shape_.inner;
      Map(
          count, [](auto a, auto b, auto s) { return a * (b - s); }, dx + at, y + at, dy + at, dot);
    }
  }

  SoftmaxShape shape_;
};

}  // namespace

KernelDef SoftmaxGradKernel() {
  return {.create = CreateKernel<SoftmaxGrad, Floats>, .can_alias = CanAliasElementwise};
}

}  // namespace penstock::kernels
