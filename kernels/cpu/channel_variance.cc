#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

// Divides by the global number of elements: a tile's result is its part of the variance.
template <typename T>
class ChannelVariance : public ChannelKernel {
  using A = Arith<T>;

 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    ForEachChannel([&](int64_t channel) {
      const auto m = Splat(Input<A>(args, 1)[channel]);
      const double sum = SumOfChannel<T>(
          channel, [&](auto v) { return (v - m) * (v - m); }, Input<T>(args, 0));
      Put<A>(args, 0, channel, sum * share_);
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef ChannelVarianceKernel() {
  return {.create = CreateKernel<ChannelVariance, FloatsAndBFloat16>, .supports_accumulate = true};
}

}  // namespace penstock::kernels
