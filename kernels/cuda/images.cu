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

__global__ void ConvolutionKernel(ConvolutionShape s, int64_t count, const float* x,
                                  const float* weights, float* y) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.out;
    const int64_t row = at / s.columns.out % s.rows.out;
    const int64_t out = at / (s.columns.out * s.rows.out) % (s.groups * s.o);
    const int64_t image = at / (s.columns.out * s.rows.out * s.groups * s.o);
    float sum = 0;
    for (int64_t c = 0; c < s.c; ++c) {
      const float* plane =
          x + ((image * s.groups + out / s.o) * s.c + c) * s.rows.in * s.columns.in;
      const float* taps = weights + (out * s.c + c) * s.rows.taps * s.columns.taps;
      for (int64_t i = 0; i < s.rows.taps; ++i) {
        const int64_t from_row = ElementOf(s.rows, row, i);
        if (from_row < 0) continue;
        for (int64_t j = 0; j < s.columns.taps; ++j) {
          const int64_t from_column = ElementOf(s.columns, column, j);
          if (from_column < 0) continue;
          sum += plane[from_row * s.columns.in + from_column] * taps[i * s.columns.taps + j];
        }
      }
    }
    y[at] = sum;
  }
}

__global__ void ConvolutionInputGradKernel(ConvolutionShape s, int64_t count, const float* weights,
                                           const float* dy, float* dx) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.in;
    const int64_t row = at / s.columns.in % s.rows.in;
    const int64_t in = at / (s.columns.in * s.rows.in) % (s.groups * s.c);
    const int64_t image = at / (s.columns.in * s.rows.in * s.groups * s.c);
    const int64_t group = in / s.c;
    float sum = 0;
    for (int64_t o = group * s.o; o < (group + 1) * s.o; ++o) {
      const float* plane = dy + (image * s.groups * s.o + o) * s.rows.out * s.columns.out;
      const float* taps = weights + (o * s.c + in % s.c) * s.rows.taps * s.columns.taps;
      for (int64_t i = 0; i < s.rows.taps; ++i) {
        const int64_t from_row = ResultOf(s.rows, row, i);
        if (from_row < 0) continue;
        for (int64_t j = 0; j < s.columns.taps; ++j) {
          const int64_t from_column = ResultOf(s.columns, column, j);
          if (from_column < 0) continue;
          sum += plane[from_row * s.columns.out + from_column] * taps[i * s.columns.taps + j];
        }
      }
    }
    dx[at] = sum;
  }
}

// A block a weight.
__global__ void __launch_bounds__(kMaxThreads)
    ConvolutionWeightGradKernel(ConvolutionShape s, int64_t count, const float* x, const float* dy,
                                bool adds, float* dweights) {
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
      sum += x[(in * s.rows.in + from_row) * s.columns.in + from_column] *
             dy[(image * s.groups * s.o + out) * plane + row * s.columns.out + column];
    }
    sum = SumBlock(sum);
    if (threadIdx.x == 0) dweights[at] = adds ? dweights[at] + sum : sum;
  }
}

// The first of the largest elements of the window of a result; a NaN is larger than any number.
__device__ int64_t LargestOf(const PoolingShape& s, const float* plane, int64_t row,
                             int64_t column) {
  int64_t best = -1;
  for (int64_t i = 0; i < s.rows.taps; ++i) {
    const int64_t from_row = ElementOf(s.rows, row, i);
    if (from_row < 0) continue;
    for (int64_t j = 0; j < s.columns.taps; ++j) {
      const int64_t from_column = ElementOf(s.columns, column, j);
      if (from_column < 0) continue;
      const int64_t at = from_row * s.columns.in + from_column;
      if (best < 0 || plane[at] > plane[best] ||
          (plane[at] != plane[at] && plane[best] == plane[best])) {
        best = at;
      }
    }
  }
  return best;
}

__global__ void MaxPoolKernel(PoolingShape s, int64_t count, const float* x, float* y) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.out;
    const int64_t row = at / s.columns.out % s.rows.out;
    const float* plane = x + at / (s.columns.out * s.rows.out) * s.rows.in * s.columns.in;
    y[at] = plane[LargestOf(s, plane, row, column)];
  }
}

__global__ void MaxPoolGradKernel(PoolingShape s, int64_t count, const float* x, const float* dy,
                                  float* dx) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t in_plane = at % (s.rows.in * s.columns.in);
    const int64_t plane = at / (s.rows.in * s.columns.in);
    const float* from = x + plane * s.rows.in * s.columns.in;
    float sum = 0;
    for (int64_t i = 0; i < s.rows.taps; ++i) {
      const int64_t row = ResultOf(s.rows, in_plane / s.columns.in, i);
      if (row < 0) continue;
      for (int64_t j = 0; j < s.columns.taps; ++j) {
        const int64_t column = ResultOf(s.columns, in_plane % s.columns.in, j);
        if (column < 0 || LargestOf(s, from, row, column) != in_plane) continue;
        sum += dy[(plane * s.rows.out + row) * s.columns.out + column];
      }
    }
    dx[at] = sum;
  }
}

__global__ void AvgPoolKernel(PoolingShape s, int64_t count, const float* x, float* y) {
  const float share = 1 / static_cast<float>(s.rows.taps * s.columns.taps);
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.columns.out;
    const int64_t row = at / s.columns.out % s.rows.out;
    const float* plane = x + at / (s.columns.out * s.rows.out) * s.rows.in * s.columns.in;
    float sum = 0;
    for (int64_t i = 0; i < s.rows.taps; ++i) {
      const int64_t from_row = ElementOf(s.rows, row, i);
      if (from_row < 0) continue;
      for (int64_t j = 0; j < s.columns.taps; ++j) {
        const int64_t from_column = ElementOf(s.columns, column, j);
        if (from_column >= 0) sum += plane[from_row * s.columns.in + from_column];
      }
    }
    y[at] = sum * share;
  }
}

__global__ void AvgPoolGradKernel(PoolingShape s, int64_t count, const float* dy, float* dx) {
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
        if (column >= 0) sum += dy[(plane * s.rows.out + row) * s.columns.out + column];
      }
    }
    dx[at] = sum * share;
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

__device__ float SumOfSquares(const ChannelShape& s, int64_t channel, const float* x, float mean) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
    const float difference = x[ElementOfChannel(s, channel, i)] - mean;
    sum += difference * difference;
  }
  return SumBlock(sum);
}

__device__ void Normalise(const ChannelShape& s, int64_t channel, const float* x, float mean,
                          float variance, float scale, float bias, float* y) {
  const float rstd = RstdOf(s, variance);
  for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
    const int64_t at = ElementOfChannel(s, channel, i);
    y[at] = (x[at] - mean) * rstd * scale + bias;
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    BatchNormKernel(ChannelShape s, const float* x, const float* scale, const float* bias, float* y,
                    float* means, float* variances) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
      sum += x[ElementOfChannel(s, channel, i)];
    }
    const float mean = SumBlock(sum) / s.count;
    const float variance = SumOfSquares(s, channel, x, mean) / s.count;
    Normalise(s, channel, x, mean, variance, scale[channel], bias[channel], y);
    if (threadIdx.x != 0) continue;
    if (means != nullptr) means[channel] = mean;
    if (variances != nullptr) variances[channel] = variance;
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    BatchNormInferenceKernel(ChannelShape s, const float* x, const float* scale, const float* bias,
                             const float* means, const float* variances, float* y) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    Normalise(s, channel, x, means[channel], variances[channel], scale[channel], bias[channel], y);
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    BatchNormGradKernel(ChannelShape s, BatchNormGradOperands x, float* dx) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    const float mean = x.mean[channel];
    const float rstd = RstdOf(s, x.variance[channel]);
    const float slope = x.scale[channel] * rstd;
    const float mean_z = x.dscale[channel] / s.count;
    const float mean_dy = x.dbias[channel] / s.count;
    for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
      const int64_t at = ElementOfChannel(s, channel, i);
      dx[at] = slope * (x.dy[at] - mean_dy - (x.x[at] - mean) * rstd * mean_z);
    }
  }
}

__device__ void PutSum(bool adds, float sum, float* to) { *to = adds ? *to + sum : sum; }

__global__ void __launch_bounds__(kMaxThreads)
    BatchNormWeightGradKernel(ChannelShape s, const float* dy, const float* x, const float* means,
                              const float* variances, bool adds, float* dscale, float* dbias) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    const float mean = means[channel];
    const float rstd = RstdOf(s, variances[channel]);
    float scale_sum = 0;
    float bias_sum = 0;
    for (int64_t i = threadIdx.x; i < s.n * s.size; i += blockDim.x) {
      const int64_t at = ElementOfChannel(s, channel, i);
      scale_sum += dy[at] * ((x[at] - mean) * rstd);
      bias_sum += dy[at];
    }
    scale_sum = SumBlock(scale_sum);
    bias_sum = SumBlock(bias_sum);
    if (threadIdx.x != 0) continue;
    PutSum(adds, scale_sum, dscale + channel);
    PutSum(adds, bias_sum, dbias + channel);
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    ChannelVarianceKernel(ChannelShape s, const float* x, const float* means, bool adds,
                          float* variances) {
  for (int64_t channel = blockIdx.x; channel < s.channels; channel += gridDim.x) {
    const float sum = SumOfSquares(s, channel, x, means[channel]);
    if (threadIdx.x == 0) PutSum(adds, sum / s.count, variances + channel);
  }
}

LaunchShape ShapeForChannels(const ChannelShape& shape) {
  return ShapeForRows(shape.channels, shape.n * shape.size);
}

int64_t InPlane(const PoolingShape& shape) { return shape.rows.in * shape.columns.in; }
int64_t OutPlane(const PoolingShape& shape) { return shape.rows.out * shape.columns.out; }

}  // namespace

LaunchResult LaunchConvolution(StreamHandle stream, const ConvolutionShape& shape, const float* x,
                               const float* weights, float* y) {
  const int64_t count = shape.n * shape.groups * shape.o * shape.rows.out * shape.columns.out;
  if (count == 0) return 0;
  return Launch(&ConvolutionKernel, ShapeForLoop(count), stream, shape, count, x, weights, y);
}

LaunchResult LaunchConvolutionInputGrad(StreamHandle stream, const ConvolutionShape& shape,
                                        const float* weights, const float* dy, float* dx) {
  const int64_t count = shape.n * shape.groups * shape.c * shape.rows.in * shape.columns.in;
  if (count == 0) return 0;
  return Launch(&ConvolutionInputGradKernel, ShapeForLoop(count), stream, shape, count, weights, dy,
                dx);
}

LaunchResult LaunchConvolutionWeightGrad(StreamHandle stream, const ConvolutionShape& shape,
                                         const float* x, const float* dy, bool adds,
                                         float* dweights) {
  const int64_t count = shape.groups * shape.o * shape.c * shape.rows.taps * shape.columns.taps;
  if (count == 0) return 0;
  return Launch(&ConvolutionWeightGradKernel,
                ShapeForRows(count, shape.n * shape.rows.out * shape.columns.out), stream, shape,
                count, x, dy, adds, dweights);
}

LaunchResult LaunchMaxPool(StreamHandle stream, const PoolingShape& shape, const float* x,
                           float* y) {
  const int64_t count = shape.planes * OutPlane(shape);
  if (count == 0) return 0;
  return Launch(&MaxPoolKernel, ShapeForLoop(count), stream, shape, count, x, y);
}

LaunchResult LaunchMaxPoolGrad(StreamHandle stream, const PoolingShape& shape, const float* x,
                               const float* dy, float* dx) {
  const int64_t count = shape.planes * InPlane(shape);
  if (count == 0) return 0;
  return Launch(&MaxPoolGradKernel, ShapeForLoop(count), stream, shape, count, x, dy, dx);
}

LaunchResult LaunchAvgPool(StreamHandle stream, const PoolingShape& shape, const float* x,
                           float* y) {
  const int64_t count = shape.planes * OutPlane(shape);
  if (count == 0) return 0;
  return Launch(&AvgPoolKernel, ShapeForLoop(count), stream, shape, count, x, y);
}

LaunchResult LaunchAvgPoolGrad(StreamHandle stream, const PoolingShape& shape, const float* dy,
                               float* dx) {
  const int64_t count = shape.planes * InPlane(shape);
  if (count == 0) return 0;
  return Launch(&AvgPoolGradKernel, ShapeForLoop(count), stream, shape, count, dy, dx);
}

LaunchResult LaunchBatchNorm(StreamHandle stream, const ChannelShape& shape, const float* x,
                             const float* scale, const float* bias, float* y, float* mean,
                             float* variance) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormKernel, ShapeForChannels(shape), stream, shape, x, scale, bias, y, mean,
                variance);
}

LaunchResult LaunchBatchNormInference(StreamHandle stream, const ChannelShape& shape,
                                      const float* x, const float* scale, const float* bias,
                                      const float* mean, const float* variance, float* y) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormInferenceKernel, ShapeForChannels(shape), stream, shape, x, scale, bias,
                mean, variance, y);
}

LaunchResult LaunchBatchNormGrad(StreamHandle stream, const ChannelShape& shape,
                                 const BatchNormGradOperands& operands, float* dx) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormGradKernel, ShapeForChannels(shape), stream, shape, operands, dx);
}

LaunchResult LaunchBatchNormWeightGrad(StreamHandle stream, const ChannelShape& shape,
                                       const float* dy, const float* x, const float* mean,
                                       const float* variance, bool adds, float* dscale,
                                       float* dbias) {
  if (shape.channels == 0) return 0;
  return Launch(&BatchNormWeightGradKernel, ShapeForChannels(shape), stream, shape, dy, x, mean,
                variance, adds, dscale, dbias);
}

LaunchResult LaunchChannelVariance(StreamHandle stream, const ChannelShape& shape, const float* x,
                                   const float* mean, bool adds, float* variance) {
  if (shape.channels == 0) return 0;
  return Launch(&ChannelVarianceKernel, ShapeForChannels(shape), stream, shape, x, mean, adds,
                variance);
}

}  // namespace penstock::kernels::cuda
