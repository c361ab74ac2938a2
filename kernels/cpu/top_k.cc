#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

// A pass over the row for each element chosen: k is small. A NaN counts as the largest number, so
// that it shows.
template <typename T>
class TopK : public CpuKernel {
 public:
  TopK(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        rows_(RowsOf(spec.inputs[0])),
        k_(spec.attributes.GetInt("k", 1)) {}

  absl::Status Run(const KernelArgs& args) override {
    pool_.ParallelFor(
        rows_.count, GrainRows(rows_.size * k_), [&](int64_t begin, int64_t end, int) {
          for (int64_t row = begin; row < end; ++row) {
            Choose(Input<T>(args, 0) + row * rows_.size, Output<T>(args, 0) + row * k_,
                   Output<int64_t>(args, 1) + row * k_);
          }
        });
    return absl::OkStatus();
  }

 private:
  void Choose(const T* x, T* values, int64_t* indices) const {
    for (int64_t j = 0; j < k_; ++j) {
      int64_t best = -1;
      for (int64_t i = 0; i < rows_.size; ++i) {
        if (best >= 0 && !IsLarger(x[i], x[best])) continue;
        if (std::find(indices, indices + j, i) == indices + j) best = i;
      }
      values[j] = x[best];
      indices[j] = best;
    }
  }

  static bool IsLarger(T x, T y) { return x > y || (std::isnan(x) && !std::isnan(y)); }

  Rows rows_;
  int64_t k_;
};

}  // namespace

KernelDef TopKKernel() { return {.create = CreateKernel<TopK, Floats>}; }

}  // namespace penstock::kernels
