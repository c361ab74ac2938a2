#include "kernels/cpu/channels.h"

namespace penstock::kernels {
namespace {

// dscale = the sum of dy (x - mean) rstd; dbias = the sum of dy.
template <typename T>
class BatchNormWeightGrad : public ChannelKernel {
  using A = Arith<T>;

 public:
  using ChannelKernel::ChannelKernel;

  absl::Status Run(const KernelArgs& args) override {
    const T* dy = Input<T>(args, 0);
    const T* x = Input<T>(args, 1);
    ForEachChannel([&](int64_t channel) {
      const auto m = Splat(Input<A>(args, 2)[channel]);
      const auto r = Splat(RstdOf(Input<A>(args, 3)[channel]));
      Put<A>(args, 0, channel,
             SumOfChannel<T>(
                 channel, [&](auto d, auto v) { return d * ((v - m) * r); }, dy, x));
      Put<A>(args, 1, channel,
             SumOfChannel<T>(
                 channel, [](auto d) { return d; }, dy));
    });
    return absl::OkStatus();
  }
};

KernelOr CreateBatchNormWeightGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  // Of operands of 16 bits, results in f32 only.
  if (IsHalf(spec.outputs[0].dtype)) return UnsupportedDType(spec.op, spec.outputs[0].dtype);
  return CreateKernel<BatchNormWeightGrad, FloatsAndBFloat16>(spec, device, stream);
}

}  // namespace

KernelDef BatchNormWeightGradKernel() {
  return {.create = CreateBatchNormWeightGrad, .supports_accumulate = true};
}

}  // namespace penstock::kernels
