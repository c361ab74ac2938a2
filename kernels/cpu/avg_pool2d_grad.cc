#include <algorithm>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class AvgPool2dGrad : public PoolingKernel {
 public:
  AvgPool2dGrad(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.outputs[0], spec.inputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    const T share = static_cast<T>(1.0 / static_cast<double>(num_taps()));
    ForEachPlane([&](int64_t plane, int) {
      const T* dy = Input<T>(args, 0) + plane * out_size();
      T* dx = Output<T>(args, 0) + plane * in_size();
      std::fill(dx, dx + in_size(), T{0});
      if (out_[1] >= kLeastInParts) {
        // An element gets the shares of its windows in their order, which is that of taps reversed.
        ForEachPart([&](const Part& part) {
          ForEachTap</*is_reversed=*/true>(part, [&](const Tap& tap, int64_t place, auto stride) {
            T* to = dx + place;
            const T* from = dy + part.first + tap.results.begin;
            for (int64_t k = 0; k < tap.num_results(); ++k) to[k * stride] += from[k] * share;
          });
        });
        return;
      }
      ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          for (int64_t column = columns.begin; column < columns.end; ++column) {
            dx[row * in_[1] + column] += dy[i] * share;
          }
        }
      });
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef AvgPool2dGradKernel() { return {.create = CreateKernel<AvgPool2dGrad, Floats>}; }

}  // namespace penstock::kernels
