#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

template <typename T>
class BatchNormInference : public ChannelKernel {
  using A = Arith<T>;

 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    ForEachChannel([&](int64_t channel) {
      const auto s = Broadcast(Input<T>(args, 1)[channel]);
      const auto b = Broadcast(Input<T>(args, 2)[channel]);
      const auto m = Splat(Input<A>(args, 3)[channel]);
      const auto r = Splat(RstdOf(Input<A>(args, 4)[channel]));
      MapChannel(
          channel, [&](auto v) { return (v - m) * r * s + b; }, Output<T>(args, 0),
          Input<T>(args, 0));
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef BatchNormInferenceKernel() {
  return {.create = CreateKernel<BatchNormInference, FloatsAndBFloat16>,
          .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
