#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

// The batch is whole here. Two passes for the statistics: no cancellation.
template <typename T>
class BatchNorm : public ChannelKernel {
  using A = Arith<T>;

 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    A* means = args.outputs.size() > 1 ? Output<A>(args, 1) : nullptr;
    A* variances = args.outputs.size() > 2 ? Output<A>(args, 2) : nullptr;
    ForEachChannel([&](int64_t channel) {
      const A mean = static_cast<A>(SumOfChannel<T>(
                                        channel, [](auto v) { return v; }, x) *
                                    share_);
      const auto m = Splat(mean);
      const A variance = static_cast<A>(SumOfChannel<T>(
                                            channel, [&](auto v) { return (v - m) * (v - m); }, x) *
                                        share_);
      const auto r = Splat(RstdOf(variance));
      const auto s = Broadcast(Input<T>(args, 1)[channel]);
      const auto b = Broadcast(Input<T>(args, 2)[channel]);
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
  return {.create = CreateKernel<BatchNorm, FloatsAndBFloat16>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
