#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

// dscale = the sum of dy (x - mean) rstd; dbias = the sum of dy.
template <typename T>
class BatchNormWeightGrad : public ChannelKernel {
 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    const T* dy = Input<T>(args, 0);
    const T* x = Input<T>(args, 1);
    ForEachChannel([&](int64_t channel) {
      const auto m = Splat(Input<T>(args, 2)[channel]);
      const auto r = Splat(RstdOf(Input<T>(args, 3)[channel]));
      Put<T>(args, 0, channel,
             SumOfChannel<T>(
                 channel, [&](auto d, auto v) { return d * ((v - m) * r); }, dy, x));
      Put<T>(args, 1, channel,
             SumOfChannel<T>(
                 channel, [](auto d) { return d; }, dy));
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef BatchNormWeightGradKernel() {
  return {.create = CreateKernel<BatchNormWeightGrad, Floats>, .supports_accumulate = true};
}

}  // namespace penstock::kernels
