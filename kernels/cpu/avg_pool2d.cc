#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class AvgPool2d : public PoolingKernel {
 public:
  AvgPool2d(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.outputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    const double share = 1.0 / static_cast<double>(num_taps());
    ForEachPlane([&](int64_t plane, int) {
      const T* x = Input<T>(args, 0) + plane * in_size();
      T* y = Output<T>(args, 0) + plane * out_size();
      if (out_[1] >= kLeastInParts) {
        ForEachPart([&](const Part& part) {
          std::array<double, kMostResults> sums;
          std::fill_n(sums.begin(), part.count, 0.0);
          ForEachTap(part, [&](const Tap& tap, int64_t place, auto stride) {
            const T* from = x + place;
            double* to = sums.data() + tap.results.begin;
            for (int64_t k = 0; k < tap.num_results(); ++k) {
              to[k] += static_cast<double>(from[k * stride]);
            }
          });
          for (int64_t k = 0; k < part.count; ++k) {
            y[part.first + k] = static_cast<T>(sums[k] * share);
          }
        });
        return;
      }
      ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
        double sum = 0;
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          for (int64_t column = columns.begin; column < columns.end; ++column) {
            sum += static_cast<double>(x[row * in_[1] + column]);
          }
        }
        y[i] = static_cast<T>(sum * share);
      });
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef AvgPool2dKernel() { return {.create = CreateKernel<AvgPool2d, Floats>}; }

}  // namespace penstock::kernels
