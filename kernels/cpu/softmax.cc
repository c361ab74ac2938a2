#include "kernels/cpu/softmax.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Softmax : public CpuKernel {
 public:
  Softmax(const KernelSpec& spec, Device& device) : CpuKernel(spec, device), shape_(spec) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    T* y = Output<T>(args, 0);
    if (shape_.inner == 1) {
      pool_.ParallelFor(shape_.outer, GrainRows(shape_.n), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) Row(x + row * shape_.n, y + row * shape_.n);
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
                          Columns(x + at, y + at, std::min(piece, shape_.inner - first));
                        }
                      });
    return absl::OkStatus();
  }

 private:
  void Row(const T* x, T* y) const {
    const T largest = MaxOf(shape_.n, x);
    const auto max = Splat(largest);
    Map(
        shape_.n, [&](auto v) { return ExpOfSmall(v - max); }, y, x);
    const double sum = SumOf<T>(
        shape_.n, [](auto v) { return v; }, y);
    const auto scale = Splat(static_cast<T>(1 / (sum + NanUnlessFinite(largest))));
    Map(
        shape_.n, [&](auto v) { return v * scale; }, y, y);
  }

  // The same, side by side, for `count` columns that are `inner` apart from row to row.
  void Columns(const T* x, T* y, int64_t count) const {
    alignas(kVecBytes) T max[kMaxColumnPiece];
    alignas(kVecBytes) double sums[kMaxColumnPiece];
    alignas(kVecBytes) T sum[kMaxColumnPiece];
    std::fill(max, max + count, -std::numeric_limits<T>::infinity());
    std::fill(sums, sums + count, 0.0);
    for (int64_t i = 0; i < shape_.n; ++i) {
      Map(
          count, [](auto m, auto v) { return Max(m, v); }, max, max, x + i * shape_.inner);
    }
    AddColumnSums<T, 8>(
        shape_.n, count, [&](int64_t i) { return i * shape_.inner; },
        [&](int64_t at, int64_t j, auto memory) {
          const Vec<T> e = ExpOfSmall(memory.Load(x + at + j) - memory.Load(max + j));
          memory.Store(y + at + j, e);
          return std::array{e};
        },
        std::array<double*, 1>{sums});
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<T>(sums[i]) + NanUnlessFinite(max[i]);
    for (int64_t i = 0; i < shape_.n; ++i) {
      T* to = y + i * shape_.inner;
      Map(
          count, [](auto v, auto s) { return v / s; }, to, to, sum);
    }
  }

  SoftmaxShape shape_;
};

}  // namespace

KernelDef SoftmaxKernel() {
  return {.create = CreateKernel<Softmax, Floats>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
