#include "kernels/cuda/images.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// The element that result `i` reads at a tap, or -1.
__device__ int64_t ElementOf(const WindowAxis& axis, int64_t i, int64_t tap) {
  const int64_t at = i * axis.stride - axis.low + tap * axis.dilation;
  return at >= 0 && at < axis.in ? at : -1;
}

// The result that reads element `at` at a tap, or -1.
__device__ int64_t ResultOf(const WindowAxis& axis, int64_t at, int64_t tap) {
  const int64_t offset = at + axis.low - tap * axis.dilation;
  if (offset < 0 || offset % axis.stride != 0) return -1;
  const int64_t i = offset / axis.stride;
  return i < axis.out ? i : -1;
}

template <typename T>
__global__ void ConvolutionKernel(ConvolutionShape s, int64_t count, const T* x, const T* weights,
                                  T* y) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.out;
    const int64_t row = at / s.columns.out % s.rows.out;
    const int64_t out = at / (s.columns.out * s.rows.out) % (s.groups * s.o);
    const int64_t image = at / (s.columns.out * s.rows.out * s.groups * s.o);
    float sum = 0;
    for (int64_t c = 0; c < s.c; ++c) {
      const T* plane = x + ((image * s.groups + out / s.o) * s.c + c) * s.rows.in * s.columns.in;
      const T* taps = weights + (out * s.c + c) * s.rows.taps * s.columns.taps;
      for (int64_t i = 0; i < s.rows.taps; ++i) {
        const int64_t from_row = ElementOf(s.rows, row, i);
        if (from_row < 0) continue;
        for (int64_t j = 0; j < s.columns.taps; ++j) {
          const int64_t from_column = ElementOf(s.columns, column, j);
          if (from_column < 0) continue;
          sum += Widen(plane[from_row * s.columns.in + from_column]) *
                 Widen(taps[i * s.columns.taps + j]);
        }
      }
    }
    y[at] = Narrow<T>(sum);
  }
}

template <typename T>
__global__ void ConvolutionInputGradKernel(ConvolutionShape s, int64_t count, const T* weights,
                                           const T* dy, T* dx) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.in;
    const int64_t row = at / s.columns.in % s.rows.in;
    const int64_t in = at / (s.columns.in * s.rows.in) % (s.groups * s.c);
    const int64_t image = at / (s.columns.in * s.rows.in * s.groups * s.c);
    const int64_t group = in / s.c;
    float sum = 0;
    for (int64_t o = group * s.o; o < (group + 1) * s.o; ++o) {
      const T* plane = dy + (image * s.groups * s.o + o) * s.rows.out * s.columns.out;
      const T* taps = weights + (o * s.c + in % s.c) * s.rows.taps * s.columns.taps;
      for (int64_t i = 0; i < s.rows.taps; ++i) {
        const int64_t from_row = ResultOf(s.rows, row, i);
        if (from_row < 0) continue;
        for (int64_t j = 0; j < s.columns.taps; ++j) {
          const int64_t from_column = ResultOf(s.columns, column, j);
          if (from_column < 0) continue;
          sum += Widen(plane[from_row * s.columns.out + from_column]) *
                 Widen(taps[i * s.columns.taps + j]);
        }
      }
    }
    dx[at] = Narrow<T>(sum);
  }
}

// A block a weight.
template <typename T, typename R>
__global__ void __launch_bounds__(kMaxThreads)
    ConvolutionWeightGradKernel(ConvolutionShape s, int64_t count, const T* x, const T* dy,
                                bool adds, R* dweights) {
  const int64_t plane = s.rows.out * s.columns.out;
  for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
    const int64_t j = at % s.columns.taps;
    const int64_t i = at / s.columns.taps % s.rows.taps;
    const int64_t c = at / (s.columns.taps * s.rows.taps) % s.c;
    const int64_t out = at / (s.columns.taps * s.rows.taps * s.c);
    float sum = 0;
    for (int64_t term = threadIdx.x; term < s.n * plane; term += blockDim.x) {
      const int64_t image = term / plane;
      const int64_t row = term % plane / s.columns.out;
      const int64_t column = term % s.columns.out;
      const int64_t from_row = ElementOf(s.rows, row, i);
      const int64_t from_column = ElementOf(s.columns, column, j);
      if (from_row < 0 || from_column < 0) continue;
      const int64_t in = (image * s.groups + out / s.o) * s.c + c;
      sum += Widen(x[(in * s.rows.in + from_row) * s.columns.in + from_column]) *
             Widen(dy[(image * s.groups * s.o + out) * plane + row * s.columns.out + column]);
    }
    sum = SumBlock(sum);
    if (threadIdx.x == 0) Put(adds, sum, dweights + at);
  }
}

template <typename T>
__global__ void WidenWeightGradKernel(int64_t count, const T* narrow, bool adds, float* dweights) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    Put(adds, Widen(narrow[at]), dweights + at);
  }
}

// The first of the largest elements of the window of a result; a NaN is larger than any number.
template <typename T>
__device__ int64_t LargestOf(const PoolingShape& s, const T* plane, int64_t row, int64_t column) {
  int64_t best = -1;
  float largest = 0;
  for (int64_t i = 0; i < s.rows.taps; ++i) {
    const int64_t from_row = ElementOf(s.rows, row, i);
    if (from_row < 0) continue;
    for (int64_t j = 0; j < s.columns.taps; ++j) {
      const int64_t from_column = ElementOf(s.columns, column, j);
      if (from_column < 0) continue;
      const int64_t at = from_row * s.columns.in + from_column;
      const float value = Widen(plane[at]);
      if (best < 0 || value > largest || (value != value && largest == largest)) {
        best = at;
        largest = value;
      }
    }
  }
  return best;
}

template <typename T>
__global__ void MaxPoolKernel(PoolingShape s, int64_t count, const T* x, T* y) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.out;
    const int64_t row = at / s.columns.out % s.rows.out;
    const T* plane = x + at / (s.columns.out * s.rows.out) * s.rows.in * s.columns.in;
    y[at] = plane[LargestOf(s, plane, row, column)];
  }
}

template <typename T>
__global__ void MaxPoolGradKernel(PoolingShape s, int64_t count, const T* x, const T* dy, T* dx) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t in_plane = at % (s.rows.in * s.columns.in);
    const int64_t plane = at / (s.rows.in * s.columns.in);
    const T* from = x + plane * s.rows.in * s.columns.in;
    float sum = 0;
    for (int64_t i = 0; i < s.rows.taps; ++i) {
      const int64_t row = ResultOf(s.rows, in_plane / s.columns.in, i);
      if (row < 0) continue;
      for (int64_t j = 0; j < s.columns.taps; ++j) {
        const int64_t column = ResultOf(s.columns, in_plane % s.columns.in, j);
        if (column < 0 || LargestOf(s, from, row, column) != in_plane) continue;
        sum += Widen(dy[(plane * s.rows.out + row) * s.columns.out + column]);
      }
    }
    dx[at] = Narrow<T>(sum);
  }
}

template <typename T>
__global__ void AvgPoolKernel(PoolingShape s, int64_t count, const T* x, T* y) {
  const float share = 1 / static_cast<float>(s.rows.taps * s.columns.taps);
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.out;
    const int64_t row = at / s.columns.out % s.rows.out;
    const T* plane = x + at / (s.columns.out * s.rows.out) * s.rows.in * s.columns.in;
    float sum = 0;
    for (int64_t i = 0; i < s.rows.taps; ++i) {
      const int64_t from_row = ElementOf(s.rows, row, i);
      if (from_row < 0) continue;
      for (int64_t j = 0; j < s.columns.taps; ++j) {
        const int64_t from_column = ElementOf(s.columns, column, j);
        if (from_column >= 0) sum += Widen(plane[from_row * s.columns.in + from_column]);
      }
    }
    y[at] = Narrow<T>(sum * share);
  }
}

template <typename T>
__global__ void AvgPoolGradKernel(PoolingShape s, int64_t count, const T* dy, T* dx) {
  const float share = 1 / static_cast<float>(s.rows.taps * s.columns.taps);
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t in_plane = at % (s.rows.in * s.columns.in);
    const int64_t plane = at / (s.rows.in * s.columns.in);
    float sum = 0;
    for (int64_t i = 0; i < s.rows.taps; ++i) {
      const int64_t row = ResultOf(s.rows, in_plane / s.columns.in, i);
      if (row < 0) continue;
      for (int64_t j = 0; j < s.columns.taps; ++j) {
        const int64_t column = ResultOf(s.columns, in_plane % s.columns.in, j);
        if (column >= 0) sum += Widen(dy[(plane * s.rows.out + row) * s.columns.out + column]);
      }
    }
    dx[at] = Narrow<T>(sum * share);
  }
}

// ---- Batch normalization: a block a channel.

// Where element i of a channel lies.
__device__ int64_t ElementOfChannel(const ChannelShape& s, int64_t channel, int64_t i) {
  return (i / s.size * s.channels + channel) * s.size + i % s.size;
}

__device__ float RstdOf(const ChannelShape& s, float variance) {
  return 1 / sqrtf(variance + s.epsilon);
}

template <typename T>
__device__ float SumOfSquares(const ChannelShape& s, int64_t channel, const T* x, float mean) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
    const float difference = Widen(x[ElementOfChannel(s, channel, i)]) - mean;
    sum += difference * difference;
  }
  return SumBlock(sum);
}

template <typename T>
__device__ void Normalise(const ChannelShape& s, int64_t channel, const T* x, float mean,
                          float variance, float scale, float bias, T* y) {
  const float rstd = RstdOf(s, variance);
  for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
    const int64_t at = ElementOfChannel(s, channel, i);
    y[at] = Narrow<T>((Widen(x[at]) - mean) * rstd * scale + bias);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    BatchNormKernel(ChannelShape s, const T* x, const T* scale, const T* bias, T* y, float* means,
                    float* variances) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
      sum += Widen(x[ElementOfChannel(s, channel, i)]);
    }
    const float mean = SumBlock(sum) / s.count;
    const float variance = SumOfSquares(s, channel, x, mean) / s.count;
    Normalise(s, channel, x, mean, variance, Widen(scale[channel]), Widen(bias[channel]), y);
    if (threadIdx.x != 0) continue;
    if (means != nullptr) means[channel] = mean;
    if (variances != nullptr) variances[channel] = variance;
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    BatchNormInferenceKernel(ChannelShape s, const T* x, const T* scale, const T* bias,
                             const float* means, const float* variances, T* y) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    Normalise(s, channel, x, means[channel], variances[channel], Widen(scale[channel]),
              Widen(bias[channel]), y);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    BatchNormGradKernel(ChannelShape s, BatchNormGradOperands<T> x, T* dx) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    const float mean = x.mean[channel];
    const float rstd = RstdOf(s, x.variance[channel]);
    const float slope = Widen(x.scale[channel]) * rstd;
    const float mean_z = x.dscale[channel] / s.count;
    const float mean_dy = x.dbias[channel] / s.count;
    for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
      const int64_t at = ElementOfChannel(s, channel, i);
      dx[at] =
          Narrow<T>(slope * (Widen(x.dy[at]) - mean_dy - (Widen(x.x[at]) - mean) * rstd * mean_z));
    }
  }
}

template <typename T, typename R>
__global__ void __launch_bounds__(kMaxThreads)
    BatchNormWeightGradKernel(ChannelShape s, const T* dy, const T* x, const float* means,
                              const float* variances, bool adds, R* dscale, R* dbias) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    const float mean = means[channel];
    const float rstd = RstdOf(s, variances[channel]);
    float scale_sum = 0;
    float bias_sum = 0;
    for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
      const int64_t at = ElementOfChannel(s, channel, i);
      scale_sum += Widen(dy[at]) * ((Widen(x[at]) - mean) * rstd);
      bias_sum += Widen(dy[at]);
    }
    scale_sum = SumBlock(scale_sum);
    bias_sum = SumBlock(bias_sum);
    if (threadIdx.x != 0) continue;
    Put(adds, scale_sum, dscale + channel);
    Put(adds, bias_sum, dbias + channel);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    ChannelVarianceKernel(ChannelShape s, const T* x, const float* means, bool adds,
                          float* variances) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    const float sum = SumOfSquares(s, channel, x, means[channel]);
    if (threadIdx.x == 0) Put(adds, sum / s.count, variances + channel);
  }
}

LaunchShape ShapeForChannels(const ChannelShape& shape) {
  return ShapeForRows(shape.channels, shape.n * shape.size);
}

int64_t InPlane(const PoolingShape& shape) { return shape.rows.in * shape.columns.in; }
int64_t OutPlane(const PoolingShape& shape) { return shape.rows.out * shape.columns.out; }

}  // namespace

template <typename T>
LaunchResult LaunchConvolution(StreamHandle stream, const ConvolutionShape& shape, const T* x,
                               const T* weights, T* y) {
  const int64_t count = shape.n * shape.groups * shape.o * shape.rows.out * shape.columns.out;
  if (count == 0) return 0;
  return Launch(&ConvolutionKernel<T>, ShapeForLoop(count), stream, shape, count, x, weights, y);
}

template <typename T>
LaunchResult LaunchConvolutionInputGrad(StreamHandle stream, const ConvolutionShape& shape,
                                        const T* weights, const T* dy, T* dx) {
  const int64_t count = shape.n * shape.groups * shape.c * shape.rows.in * shape.columns.in;
  if (count == 0) return 0;
  return Launch(&ConvolutionInputGradKernel<T>, ShapeForLoop(count), stream, shape, count, weights,
                dy, dx);
}

template <typename T, typename R>
LaunchResult LaunchConvolutionWeightGrad(StreamHandle stream, const ConvolutionShape& shape,
                                         const T* x, const T* dy, bool adds, R* dweights) {
  const int64_t count = shape.groups * shape.o * shape.c * shape.rows.taps * shape.columns.taps;
  if (count == 0) return 0;
  return Launch(&ConvolutionWeightGradKernel<T, R>,
                ShapeForRows(count, shape.n * shape.rows.out * shape.columns.out), stream, shape,
                count, x, dy, adds, dweights);
}

template <typename T>
LaunchResult LaunchWidenWeightGrad(StreamHandle stream, int64_t count, const T* narrow, bool adds,
                                   float* dweights) {
  if (count == 0) return 0;
  return Launch(&WidenWeightGradKernel<T>, ShapeForLoop(count), stream, count, narrow, adds,
                dweights);
}

template <typename T>
LaunchResult LaunchMaxPool(StreamHandle stream, const PoolingShape& shape, const T* x, T* y) {
  const int64_t count = shape.planes * OutPlane(shape);
  if (count == 0) return 0;
  return Launch(&MaxPoolKernel<T>, ShapeForLoop(count), stream, shape, count, x, y);
}

template <typename T>
LaunchResult LaunchMaxPoolGrad(StreamHandle stream, const PoolingShape& shape, const T* x,
                               const T* dy, T* dx) {
  const int64_t count = shape.planes * InPlane(shape);
  if (count == 0) return 0;
  return Launch(&MaxPoolGradKernel<T>, ShapeForLoop(count), stream, shape, count, x, dy, dx);
}

template <typename T>
LaunchResult LaunchAvgPool(StreamHandle stream, const PoolingShape& shape, const T* x, T* y) {
  const int64_t count = shape.planes * OutPlane(shape);
  if (count == 0) return 0;
  return Launch(&AvgPoolKernel<T>, ShapeForLoop(count), stream, shape, count, x, y);
}

template <typename T>
LaunchResult LaunchAvgPoolGrad(StreamHandle stream, const PoolingShape& shape, const T* dy, T* dx) {
  const int64_t count = shape.planes * InPlane(shape);
  if (count == 0) return 0;
  return Launch(&AvgPoolGradKernel<T>, ShapeForLoop(count), stream, shape, count, dy, dx);
}

template <typename T>
LaunchResult LaunchBatchNorm(StreamHandle stream, const ChannelShape& shape, const T* x,
                             const T* scale, const T* bias, T* y, float* mean, float* variance) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormKernel<T>, ShapeForChannels(shape), stream, shape, x, scale, bias, y,
                mean, variance);
}

template <typename T>
LaunchResult LaunchBatchNormInference(StreamHandle stream, const ChannelShape& shape, const T* x,
                                      const T* scale, const T* bias, const float* mean,
                                      const float* variance, T* y) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormInferenceKernel<T>, ShapeForChannels(shape), stream, shape, x, scale,
                bias, mean, variance, y);
}

template <typename T>
LaunchResult LaunchBatchNormGrad(StreamHandle stream, const ChannelShape& shape,
                                 const BatchNormGradOperands<T>& operands, T* dx) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormGradKernel<T>, ShapeForChannels(shape), stream, shape, operands, dx);
}

template <typename T, typename R>
LaunchResult LaunchBatchNormWeightGrad(StreamHandle stream, const ChannelShape& shape, const T* dy,
                                       const T* x, const float* mean, const float* variance,
                                       bool adds, R* dscale, R* dbias) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormWeightGradKernel<T, R>, ShapeForChannels(shape), stream, shape, dy, x,
                mean, variance, adds, dscale, dbias);
}

template <typename T>
LaunchResult LaunchChannelVariance(StreamHandle stream, const ChannelShape& shape, const T* x,
                                   const float* mean, bool adds, float* variance) {
  if (shape.channels == 0) return 0;
  return Launch(&ChannelVarianceKernel<T>, ShapeForChannels(shape), stream, shape, x, mean, adds,
                variance);
}

// ---- Instances.

template LaunchResult LaunchConvolution(StreamHandle, const ConvolutionShape&, const float*,
                                        const float*, float*);
template LaunchResult LaunchConvolution(StreamHandle, const ConvolutionShape&, const BFloat16*,
                                        const BFloat16*, BFloat16*);
template LaunchResult LaunchConvolution(StreamHandle, const ConvolutionShape&, const Float16*,
                                        const Float16*, Float16*);

template LaunchResult LaunchConvolutionInputGrad(StreamHandle, const ConvolutionShape&,
                                                 const float*, const float*, float*);
template LaunchResult LaunchConvolutionInputGrad(StreamHandle, const ConvolutionShape&,
                                                 const BFloat16*, const BFloat16*, BFloat16*);
template LaunchResult LaunchConvolutionInputGrad(StreamHandle, const ConvolutionShape&,
                                                 const Float16*, const Float16*, Float16*);

template LaunchResult LaunchConvolutionWeightGrad(StreamHandle, const ConvolutionShape&,
                                                  const float*, const float*, bool, float*);
template LaunchResult LaunchConvolutionWeightGrad(StreamHandle, const ConvolutionShape&,
                                                  const BFloat16*, const BFloat16*, bool,
                                                  BFloat16*);
template LaunchResult LaunchConvolutionWeightGrad(StreamHandle, const ConvolutionShape&,
                                                  const BFloat16*, const BFloat16*, bool, float*);
template LaunchResult LaunchConvolutionWeightGrad(StreamHandle, const ConvolutionShape&,
                                                  const Float16*, const Float16*, bool, Float16*);
template LaunchResult LaunchConvolutionWeightGrad(StreamHandle, const ConvolutionShape&,
                                                  const Float16*, const Float16*, bool, float*);

template LaunchResult LaunchWidenWeightGrad(StreamHandle, int64_t, const BFloat16*, bool, float*);
template LaunchResult LaunchWidenWeightGrad(StreamHandle, int64_t, const Float16*, bool, float*);

template LaunchResult LaunchMaxPool(StreamHandle, const PoolingShape&, const float*, float*);
template LaunchResult LaunchMaxPool(StreamHandle, const PoolingShape&, const BFloat16*, BFloat16*);
template LaunchResult LaunchMaxPool(StreamHandle, const PoolingShape&, const Float16*, Float16*);

template LaunchResult LaunchMaxPoolGrad(StreamHandle, const PoolingShape&, const float*,
                                        const float*, float*);
template LaunchResult LaunchMaxPoolGrad(StreamHandle, const PoolingShape&, const BFloat16*,
                                        const BFloat16*, BFloat16*);
template LaunchResult LaunchMaxPoolGrad(StreamHandle, const PoolingShape&, const Float16*,
                                        const Float16*, Float16*);

template LaunchResult LaunchAvgPool(StreamHandle, const PoolingShape&, const float*, float*);
template LaunchResult LaunchAvgPool(StreamHandle, const PoolingShape&, const BFloat16*, BFloat16*);
template LaunchResult LaunchAvgPool(StreamHandle, const PoolingShape&, const Float16*, Float16*);

template LaunchResult LaunchAvgPoolGrad(StreamHandle, const PoolingShape&, const float*, float*);
template LaunchResult LaunchAvgPoolGrad(StreamHandle, const PoolingShape&, const BFloat16*,
                                        BFloat16*);
template LaunchResult LaunchAvgPoolGrad(StreamHandle, const PoolingShape&, const Float16*,
                                        Float16*);

template LaunchResult LaunchBatchNorm(StreamHandle, const ChannelShape&, const float*, const float*,
                                      const float*, float*, float*, float*);
template LaunchResult LaunchBatchNorm(StreamHandle, const ChannelShape&, const BFloat16*,
                                      const BFloat16*, const BFloat16*, BFloat16*, float*, float*);
template LaunchResult LaunchBatchNorm(StreamHandle, const ChannelShape&, const Float16*,
                                      const Float16*, const Float16*, Float16*, float*, float*);

template LaunchResult LaunchBatchNormInference(StreamHandle, const ChannelShape&, const float*,
                                               const float*, const float*, const float*,
                                               const float*, float*);
template LaunchResult LaunchBatchNormInference(StreamHandle, const ChannelShape&, const BFloat16*,
                                               const BFloat16*, const BFloat16*, const float*,
                                               const float*, BFloat16*);
template LaunchResult LaunchBatchNormInference(StreamHandle, const ChannelShape&, const Float16*,
                                               const Float16*, const Float16*, const float*,
                                               const float*, Float16*);

template LaunchResult LaunchBatchNormGrad(StreamHandle, const ChannelShape&,
                                          const BatchNormGradOperands<float>&, float*);
template LaunchResult LaunchBatchNormGrad(StreamHandle, const ChannelShape&,
                                          const BatchNormGradOperands<BFloat16>&, BFloat16*);
template LaunchResult LaunchBatchNormGrad(StreamHandle, const ChannelShape&,
                                          const BatchNormGradOperands<Float16>&, Float16*);

template LaunchResult LaunchBatchNormWeightGrad(StreamHandle, const ChannelShape&, const float*,
                                                const float*, const float*, const float*, bool,
                                                float*, float*);
template LaunchResult LaunchBatchNormWeightGrad(StreamHandle, const ChannelShape&, const BFloat16*,
                                                const BFloat16*, const float*, const float*, bool,
                                                BFloat16*, BFloat16*);
template LaunchResult LaunchBatchNormWeightGrad(StreamHandle, const ChannelShape&, const BFloat16*,
                                                const BFloat16*, const float*, const float*, bool,
                                                float*, float*);
template LaunchResult LaunchBatchNormWeightGrad(StreamHandle, const ChannelShape&, const Float16*,
                                                const Float16*, const float*, const float*, bool,
                                                Float16*, Float16*);
template LaunchResult LaunchBatchNormWeightGrad(StreamHandle, const ChannelShape&, const Float16*,
                                                const Float16*, const float*, const float*, bool,
                                                float*, float*);

template LaunchResult LaunchChannelVariance(StreamHandle, const ChannelShape&, const float*,
                                            const float*, bool, float*);
template LaunchResult LaunchChannelVariance(StreamHandle, const ChannelShape&, const BFloat16*,
                                            const float*, bool, float*);
template LaunchResult LaunchChannelVariance(StreamHandle, const ChannelShape&, const Float16*,
                                            const float*, bool, float*);

}  // namespace penstock::kernels::cuda
