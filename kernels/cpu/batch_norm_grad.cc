#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

// With z = (x - mean) rstd: dx = scale rstd (dy - dbias / m - z dscale / m).
template <typename T>
class BatchNormGrad : public ChannelKernel {
  using A = Arith<T>;

 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    ForEachChannel([&](int64_t channel) {
      const A rstd = RstdOf(Input<A>(args, 4)[channel]);
      const auto m = Splat(Input<A>(args, 3)[channel]);
      const auto r = Splat(rstd);
      const auto slope = Splat(Widened(Input<T>(args, 2)[channel]) * rstd);
      const A share = static_cast<A>(share_);
      const auto mean_z = Splat(Input<A>(args, 5)[channel] * share);
      const auto mean_dy = Splat(Input<A>(args, 6)[channel] * share);
      MapChannel(
          channel, [&](auto d, auto v) { return slope * (d - mean_dy - (v - m) * r * mean_z); },
          Output<T>(args, 0), Input<T>(args, 0), Input<T>(args, 1));
    });
    return absl::OkStatus();
  }
};

bool CanAliasBatchNormGrad(const KernelSpec& spec, int input) {
  return input <= 1 && CanAliasElementwise(spec, input);
}

}  // namespace

KernelDef BatchNormGradKernel() {
  return {.create = CreateKernel<BatchNormGrad, FloatsAndBFloat16>,
          .can_alias = CanAliasBatchNormGrad};
}

}  // namespace penstock::kernels
