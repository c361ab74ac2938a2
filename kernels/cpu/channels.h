// Tensors x[n, c, ...] by channel: a channel is `n` runs of `size` elements. Elements are of type
// T; statistics and sums of a channel are of Arith<T>.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_CHANNELS_H_
#define PENSTOCK_KERNELS_CPU_CHANNELS_H_

#include <cmath>
#include <cstdint>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {

// Of the tile of operand 0.
class ChannelKernel : public CpuKernel {
 public:
  ChannelKernel(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), epsilon_(spec.attributes.GetDouble("epsilon", 1e-5)) {
    const TileDesc& x = spec.inputs[0];
    n_ = x.shape[0];
    c_ = x.shape[1];
    double count = static_cast<double>(GlobalExtent(x, 0));
    for (int dim = 2; dim < Rank(x); ++dim) {
      size_ *= x.shape[dim];
      count *= static_cast<double>(GlobalExtent(x, dim));
    }
    share_ = 1 / count;
  }

 protected:
  // f(channel) for every channel.
  template <typename F>
  void ForEachChannel(F f) {
    pool_.ParallelFor(c_, GrainRows(n_ * size_), [&](int64_t begin, int64_t end, int) {
      for (int64_t channel = begin; channel < end; ++channel) f(channel);
    });
  }

  // f(offset) for each run of a channel.
  template <typename F>
  void ForEachRun(int64_t channel, F f) const {
    for (int64_t i = 0; i < n_; ++i) f((i * c_ + channel) * size_);
  }

  // The sum of f(x[i]...) over a channel of the tile.
  template <typename T, typename F, typename... In>
  double SumOfChannel(int64_t channel, F f, const In*... in) const {
    double sum = 0;
    ForEachRun(channel, [&](int64_t at) { sum += SumOf<T>(size_, f, (in + at)...); });
    return sum;
  }

  // out[i] = f(x[i]...) over a channel.
  template <typename T, typename F, typename... In>
  void MapChannel(int64_t channel, F f, T* out, const In*... in) const {
    ForEachRun(channel, [&](int64_t at) { Map(size_, f, out + at, (in + at)...); });
  }

  template <typename A>
  A RstdOf(A variance) const {
    return 1 / std::sqrt(variance + static_cast<A>(epsilon_));
  }

  template <typename A>
  void Put(const KernelArgs& args, int output, int64_t channel, double value) const {
    StoreOrAdd(1, AddsToOutputs(args), &value, Output<A>(args, output) + channel);
  }

  const double epsilon_;
  int64_t n_ = 0;
  int64_t c_ = 0;
  int64_t size_ = 1;  // elements of a run
  double share_ = 1;  // of an element in the mean over the whole tensor's channel
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_CHANNELS_H_
