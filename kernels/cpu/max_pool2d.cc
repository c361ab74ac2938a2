#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

// The largest elements alone: of each column of the rows of a window first, which has loops over
// whole rows, and then of the columns. So of a +0 and a -0 that are both largest, the one in the
// first column is taken.
template <typename T>
class MaxPool2d : public PoolingKernel {
 public:
  MaxPool2d(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.outputs[0]),
        largest_in_columns_(static_cast<size_t>(pool_.size() * in_[1])) {}

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane, int thread) {
      T* const largest = largest_in_columns_.data() + thread * in_[1];
      const T* x = Input<T>(args, 0) + plane * in_size();
      T* y = Output<T>(args, 0) + plane * out_size();
      ForEachPart([&](Part part) {
        const bool is_first = part.first % out_[1] == 0;
        if (is_first) FindLargestInColumns(x, part.rows, largest);
        part.rows = {0, 1};
        T* const results = y + part.first;
        std::fill_n(results, part.count, -std::numeric_limits<T>::infinity());
        ForEachTap(part, [&](const Tap& tap, int64_t place, auto stride) {
          TakeLarger(largest + place, stride, tap.num_results(), results + tap.results.begin);
        });
      });
    });
    return absl::OkStatus();
  }

 private:
  void FindLargestInColumns(const T* x, const Range& rows, T* largest) const {
    std::copy_n(x + rows.begin * in_[1], in_[1], largest);
    for (int64_t row = rows.begin + 1; row < rows.end; ++row) {
      TakeLarger(x + row * in_[1], std::integral_constant<int64_t, 1>(), in_[1], largest);
    }
  }

  template <typename Stride>
  static void TakeLarger(const T* __restrict x, Stride stride, int64_t count,
                         T* __restrict largest) {
    for (int64_t k = 0; k < count; ++k) {
      const T element = x[k * stride];
      largest[k] = IsLarger(element, largest[k]) ? element : largest[k];
    }
  }

  std::vector<T> largest_in_columns_;  // of the rows of a window, by thread
};

}  // namespace

KernelDef MaxPool2dKernel() { return {.create = CreateKernel<MaxPool2d, Floats>}; }

}  // namespace penstock::kernels
