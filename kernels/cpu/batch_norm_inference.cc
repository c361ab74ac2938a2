#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

template <typename T>
class BatchNormInference : public ChannelKernel {
 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    ForEachChannel([&](int64_t channel) {
      const auto s = Splat(Input<T>(args, 1)[channel]);
      const auto b = Splat(Input<T>(args, 2)[channel]);
      const auto m = Splat(Input<T>(args, 3)[channel]);
      const auto r = Splat(RstdOf(Input<T>(args, 4)[channel]));
      MapChannel(
          channel, [&](auto v) { return (v - m) * r * s + b; }, Output<T>(args, 0),
          Input<T>(args, 0));
    });
    return absl::OkStatus();
  }
};

}  // namespace

KernelDef BatchNormInferenceKernel() {
  return {.create = CreateKernel<BatchNormInference, Floats>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
