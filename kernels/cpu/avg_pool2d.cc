#include <cstdint>
#include <vector>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class AvgPool2d : public PoolingKernel {
 public:
  AvgPool2d(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.outputs[0]),
        share_(1.0 / static_cast<double>(num_taps())) {
    if (out_[1] >= kLeastInVectors) rows_.assign(pool_.size(), {window_, in_, out_[1], 0});
  }

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane, int thread) {
      const T* x = Input<T>(args, 0) + plane * in_size();
      T* y = Output<T>(args, 0) + plane * out_size();
      if (rows_.empty()) {
        ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
          double sum = 0;
          for (int64_t row = rows.begin; row < rows.end; ++row) {
            for (int64_t column = columns.begin; column < columns.end; ++column) {
              sum += static_cast<double>(x[row * in_[1] + column]);
            }
          }
          y[i] = static_cast<T>(sum * share_);
        });
      } else {
        TakeMeans(x, rows_[thread], y);
      }
    });
    return absl::OkStatus();
  }

 private:
  // Sums of rows are added up, which loses fewer bits than one sum.
  void TakeMeans(const T* x, WindowRows<T>& laid_out, T* y) const {
    for (int64_t i = 0; i < out_[0]; ++i) {
      const Range rows = laid_out.MoveTo(x, i);
      ForEachVector<T>([&](int64_t j, int64_t count) {
        Vec<T> sum = {};
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          const T* const of_row = laid_out.RowAt(row);
          Vec<T> sum_of_row = {};
          for (int64_t tap = 0; tap < window_[1].taps; ++tap) {
            sum_of_row += laid_out.Load(of_row, tap, j);
          }
          sum += sum_of_row;
        }
        StoreUpTo(y + i * out_[1] + j, sum * static_cast<T>(share_), count);
      });
    }
  }

  const double share_;
  std::vector<WindowRows<T>> rows_;  // by thread
};

}  // namespace

KernelDef AvgPool2dKernel() { return {.create = CreateKernel<AvgPool2d, Floats>}; }

}  // namespace penstock::kernels
