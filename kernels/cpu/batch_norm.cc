#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

// The batch is whole here. Two passes for the statistics: no cancellation.
template <typename T>
class BatchNorm : public ChannelKernel {
 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    T* means = args.outputs.size() > 1 ? Output<T>(args, 1) : nullptr;
    T* variances = args.outputs.size() > 2 ? Output<T>(args, 2) : nullptr;
    ForEachChannel([&](int64_t channel) {
      const T mean = static_cast<T>(SumOfChannel<T>(
                                        channel, [](auto v) { return v; }, x) *
                                    share_);
      const auto m = Splat(mean);
      const T variance = static_cast<T>(SumOfChannel<T>(
                                            channel, [&](auto v) { return (v - m) * (v - m); }, x) *
                                        share_);
      const auto r = Splat(RstdOf(variance));
      const auto s = Splat(Input<T>(args, 1)[channel]);
      const auto b = Splat(Input<T>(args, 2)[channel]);
      MapChannel(
          channel, [&](auto v) { return (v - m) * r * s + b; }, Output<T>(args, 0), x);
      if (means != nullptr) means[channel] = mean;
      if (variances != nullptr) variances[channel] = variance;
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef BatchNormKernel() {
  return {.create = CreateKernel<BatchNorm, Floats>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
