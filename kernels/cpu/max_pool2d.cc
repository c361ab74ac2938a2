#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class MaxPool2d : public PoolingKernel {
 public:
  MaxPool2d(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.outputs[0]) {
    if (out_[1] < kLeastInVectors) return;
    rows_.assign(pool_.size(), {window_, in_, out_[1], -std::numeric_limits<T>::infinity()});
  }

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane, int thread) {
      const T* x = Input<T>(args, 0) + plane * in_size();
      T* y = Output<T>(args, 0) + plane * out_size();
      if (rows_.empty()) {
        ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
          y[i] = x[FirstLargest(x, rows, columns)];
        });
      } else {
        TakeLargest(x, rows_[thread], y);
      }
    });
    return absl::OkStatus();
  }

 private:
  void TakeLargest(const T* x, WindowRows<T>& laid_out, T* y) const {
    for (int64_t i = 0; i < out_[0]; ++i) {
      const Range rows = laid_out.MoveTo(x, i);
      ForEachVector<T>([&](int64_t j, int64_t count) {
        Vec<T> largest = Splat(-std::numeric_limits<T>::infinity());
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          const T* const of_row = laid_out.RowAt(row);
          for (int64_t tap = 0; tap < window_[1].taps; ++tap) {
            const Vec<T> elements = laid_out.Load(of_row, tap, j);
            largest = IsLarger(elements, largest) ? elements : largest;
          }
        }
        StoreUpTo(y + i * out_[1] + j, largest, count);
      });
    }
  }

  std::vector<WindowRows<T>> rows_;  // by thread
};

}  // namespace

KernelDef MaxPool2dKernel() { return {.create = CreateKernel<MaxPool2d, Floats>}; }

}  // namespace penstock::kernels
