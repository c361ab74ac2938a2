// Launches of convolutions, poolings and batch normalization. Convolutions are direct: a thread, or
// for the gradient of the weights a block, sums up one result. They are simple, and slower than a
// library's. T: float, BFloat16 or Float16; statistics of channels are float.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_IMAGES_H_
#define PENSTOCK_KERNELS_CUDA_IMAGES_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// Result i of an axis reads the elements i * stride - low + t * dilation for the taps t.
struct WindowAxis {
  int64_t in = 0;   // elements
  int64_t out = 0;  // results
  int64_t taps = 1;
  int64_t stride = 1;
  int64_t low = 0;
  int64_t dilation = 1;
};

// x[n, groups * c, h, w], weights[groups * o, c, kh, kw], y[n, groups * o, oh, ow].
struct ConvolutionShape {
  int64_t n = 0;
  int64_t groups = 1;
  int64_t c = 0;  // input channels of a group
  int64_t o = 0;  // output channels of a group
  WindowAxis rows;
  WindowAxis columns;
};
template <typename T>
LaunchResult LaunchConvolution(StreamHandle stream, const ConvolutionShape& shape, const T* x,
                               const T* weights, T* y);
template <typename T>
LaunchResult LaunchConvolutionInputGrad(StreamHandle stream, const ConvolutionShape& shape,
                                        const T* weights, const T* dy, T* dx);
// R: T, or float where T has 16 bits.
template <typename T, typename R>
LaunchResult LaunchConvolutionWeightGrad(StreamHandle stream, const ConvolutionShape& shape,
                                         const T* x, const T* dy, bool adds, R* dweights);
// `count` weights of a gradient in f32 out of one in T, which has 16 bits.
template <typename T>
LaunchResult LaunchWidenWeightGrad(StreamHandle stream, int64_t count, const T* narrow, bool adds,
                                   float* dweights);

// Between `planes` of x[h, w] and of y[oh, ow]. An average divides by all taps.
struct PoolingShape {
  int64_t planes = 0;
  WindowAxis rows;
  WindowAxis columns;
};
template <typename T>
LaunchResult LaunchMaxPool(StreamHandle stream, const PoolingShape& shape, const T* x, T* y);
template <typename T>
LaunchResult LaunchMaxPoolGrad(StreamHandle stream, const PoolingShape& shape, const T* x,
                               const T* dy, T* dx);
template <typename T>
LaunchResult LaunchAvgPool(StreamHandle stream, const PoolingShape& shape, const T* x, T* y);
template <typename T>
LaunchResult LaunchAvgPoolGrad(StreamHandle stream, const PoolingShape& shape, const T* dy, T* dx);

// x[n, channels, size], normalised by channel.
struct ChannelShape {
  int64_t n = 0;
  int64_t channels = 0;
  int64_t size = 1;
  float count = 1;  // elements of a channel of the whole tensor
  float epsilon = 1e-5f;
};
// With statistics of its own; mean and variance may be null. y may be x.
template <typename T>
LaunchResult LaunchBatchNorm(StreamHandle stream, const ChannelShape& shape, const T* x,
                             const T* scale, const T* bias, T* y, float* mean, float* variance);
template <typename T>
LaunchResult LaunchBatchNormInference(StreamHandle stream, const ChannelShape& shape, const T* x,
                                      const T* scale, const T* bias, const float* mean,
                                      const float* variance, T* y);
template <typename T>
struct BatchNormGradOperands {
  const T* dy = nullptr;
  const T* x = nullptr;
  const T* scale = nullptr;
  const float* mean = nullptr;
  const float* variance = nullptr;
  const float* dscale = nullptr;
  const float* dbias = nullptr;
};
// dx may be dy or x.
template <typename T>
LaunchResult LaunchBatchNormGrad(StreamHandle stream, const ChannelShape& shape,
                                 const BatchNormGradOperands<T>& operands, T* dx);
// With `adds` the sums are added to the results. R: T, or float where T has 16 bits.
template <typename T, typename R>
LaunchResult LaunchBatchNormWeightGrad(StreamHandle stream, const ChannelShape& shape, const T* dy,
                                       const T* x, const float* mean, const float* variance,
                                       bool adds, R* dscale, R* dbias);
template <typename T>
LaunchResult LaunchChannelVariance(StreamHandle stream, const ChannelShape& shape, const T* x,
                                   const float* mean, bool adds, float* variance);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_IMAGES_H_
