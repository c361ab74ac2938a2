#include "kernels/cuda/rows.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// 0 for the maximum of a row whose softmax exists; NaN, as the softmax, when an element is NaN or
// infinity or all are -infinity.
__device__ float NanUnlessFinite(float max) { return max - max; }

// Where a row begins in [outer, size, inner].
__device__ int64_t RowBegin(const RowShape& shape, int64_t row) {
  return row / shape.inner * shape.size * shape.inner + row % shape.inner;
}

__global__ void __launch_bounds__(kMaxThreads)
    SoftmaxKernel(RowShape shape, int64_t count, const float* x, float* y) {
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const float* from = x + RowBegin(shape, row);
    float* to = y + RowBegin(shape, row);
    float max = -INFINITY;
    for (int64_t i = threadIdx.x; i < shape.size; i += blockDim.x) {
      max = MaxOp()(max, from[i * shape.inner]);
    }
    max = MaxBlock(max);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < shape.size; i += blockDim.x) {
      sum += expf(from[i * shape.inner] - max);
    }
    const float scale = 1 / (SumBlock(sum) + NanUnlessFinite(max));
    for (int64_t i = threadIdx.x; i < shape.size; i += blockDim.x) {
      to[i * shape.inner] = expf(from[i * shape.inner] - max) * scale;
    }
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    SoftmaxGradKernel(RowShape shape, int64_t count, const float* y, const float* dy, float* dx) {
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const int64_t begin = RowBegin(shape, row);
    float dot = 0;
    for (int64_t i = threadIdx.x; i < shape.size; i += blockDim.x) {
      dot += y[begin + i * shape.inner] * dy[begin + i * shape.inner];
    }
    dot = SumBlock(dot);
    for (int64_t i = threadIdx.x; i < shape.size; i += blockDim.x) {
      const int64_t at = begin + i * shape.inner;
      dx[at] = y[at] * (dy[at] - dot);
    }
  }
}

// Two passes over a row that the first one has brought into the cache: no cancellation.
__global__ void __launch_bounds__(kMaxThreads)
    LayerNormKernel(NormParams params, const float* x, const float* scale, const float* bias,
                    float* y, float* means, float* rstds) {
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const float* from = x + row * params.size;
    float* to = y + row * params.size;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) sum += from[i];
    const float mean = SumBlock(sum) / static_cast<float>(params.size);
    float squares = 0;
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) {
      squares += (from[i] - mean) * (from[i] - mean);
    }
    const float variance = SumBlock(squares) / static_cast<float>(params.size);
    const float rstd = 1 / sqrtf(variance + params.epsilon);
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) {
      to[i] = (from[i] - mean) * rstd * scale[i] + bias[i];
    }
    if (threadIdx.x == 0) {
      if (means != nullptr) means[row] = mean;
      if (rstds != nullptr) rstds[row] = rstd;
    }
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    RmsNormKernel(NormParams params, const float* x, const float* scale, float* y, float* rstds) {
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const float* from = x + row * params.size;
    float* to = y + row * params.size;
    float squares = 0;
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) squares += from[i] * from[i];
    const float square = SumBlock(squares) / static_cast<float>(params.size);
    const float rstd = 1 / sqrtf(square + params.epsilon);
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) {
      to[i] = from[i] * rstd * scale[i];
    }
    if (threadIdx.x == 0 && rstds != nullptr) rstds[row] = rstd;
  }
}

// With h = (x - mean) rstd and g = dy scale: dx = rstd (g - mean(g) - h mean(g h)); RMS norm has no
// mean to subtract.
__global__ void __launch_bounds__(kMaxThreads)
    NormGradKernel(NormParams params, const float* dy, const float* x, const float* scale,
                   const float* means, const float* rstds, float* dx) {
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const int64_t begin = row * params.size;
    const float mean = means != nullptr ? means[row] : 0.0f;
    const float rstd = rstds[row];
    float sum_g = 0;
    float sum_gh = 0;
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) {
      const float g = dy[begin + i] * scale[i];
      sum_g += g;
      sum_gh += g * ((x[begin + i] - mean) * rstd);
    }
    const float share = 1 / static_cast<float>(params.size);
    const float mean_gh = SumBlock(sum_gh) * share;
    const float mean_g = means != nullptr ? SumBlock(sum_g) * share : 0.0f;
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) {
      const float g = dy[begin + i] * scale[i];
      const float h = (x[begin + i] - mean) * rstd;
      dx[begin + i] = rstd * (g - mean_g - h * mean_gh);
    }
  }
}

// If the label has the largest logit, the loss may be far smaller than its term of the sum, 1,
// which is therefore left to log1p: see kernels/cpu/cross_entropy.cc.
__global__ void __launch_bounds__(kMaxThreads)
    CrossEntropyKernel(CrossEntropyParams params, const float* logits, float* losses, float* maxima,
                       float* log_sums) {
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const float* x = logits + row * params.size;
    const int64_t label = LoadIndex(params.labels, row);
    const bool is_inside = label >= 0 && label < params.limit;
    float max = -INFINITY;
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) max = MaxOp()(max, x[i]);
    max = MaxBlock(max);
    float sum = 0;  // without the label's term
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) {
      if (i != label) sum += expf(x[i] - max);
    }
    sum = SumBlock(sum) + NanUnlessFinite(max);
    if (threadIdx.x != 0) continue;
    CheckIndex(params.site, label, params.limit);
    const float of_label = is_inside ? x[label] : NAN;
    const double log_sum = of_label == max ? log1p(static_cast<double>(sum))
                                           : log(static_cast<double>(sum) + expf(of_label - max));
    losses[row] = static_cast<float>(log_sum - (static_cast<double>(of_label) - max));
    if (maxima != nullptr) maxima[row] = max;
    if (log_sums != nullptr) log_sums[row] = static_cast<float>(log_sum);
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    CrossEntropyGradKernel(CrossEntropyParams params, const float* logits, const float* maxima,
                           const float* log_sums, const float* dlosses, float* dlogits) {
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const int64_t begin = row * params.size;
    const int64_t label = LoadIndex(params.labels, row);
    const int64_t at = label - params.first;
    const float max = maxima[row];
    const float log_sum = log_sums[row];
    float dloss = dlosses[row];
    if (label < 0 || label >= params.limit) {
      if (threadIdx.x == 0) CheckIndex(params.site, label, params.limit);
      dloss = NAN;
    }
    for (int64_t i = threadIdx.x; i < params.size; i += blockDim.x) {
      const float term = dloss * expf(logits[begin + i] - max - log_sum);
      dlogits[begin + i] = i == at ? term - dloss : term;
    }
  }
}

}  // namespace

LaunchResult LaunchSoftmax(StreamHandle stream, const RowShape& shape, const float* x, float* y) {
  if (shape.count() * shape.size == 0) return 0;
  return Launch(&SoftmaxKernel, ShapeForRows(shape.count(), shape.size), stream, shape,
                shape.count(), x, y);
}

LaunchResult LaunchSoftmaxGrad(StreamHandle stream, const RowShape& shape, const float* y,
                               const float* dy, float* dx) {
  if (shape.count() * shape.size == 0) return 0;
  return Launch(&SoftmaxGradKernel, ShapeForRows(shape.count(), shape.size), stream, shape,
                shape.count(), y, dy, dx);
}

LaunchResult LaunchLayerNorm(StreamHandle stream, const NormParams& params, const float* x,
                             const float* scale, const float* bias, float* y, float* mean,
                             float* rstd) {
  if (params.rows == 0) return 0;
  return Launch(&LayerNormKernel, ShapeForRows(params.rows, params.size), stream, params, x, scale,
                bias, y, mean, rstd);
}

LaunchResult LaunchRmsNorm(StreamHandle stream, const NormParams& params, const float* x,
                           const float* scale, float* y, float* rstd) {
  if (params.rows == 0) return 0;
  return Launch(&RmsNormKernel, ShapeForRows(params.rows, params.size), stream, params, x, scale, y,
                rstd);
}

LaunchResult LaunchNormGrad(StreamHandle stream, const NormParams& params, const float* dy,
                            const float* x, const float* scale, const float* mean,
                            const float* rstd, float* dx) {
  if (params.rows == 0) return 0;
  return Launch(&NormGradKernel, ShapeForRows(params.rows, params.size), stream, params, dy, x,
                scale, mean, rstd, dx);
}

LaunchResult LaunchCrossEntropy(StreamHandle stream, const CrossEntropyParams& params,
                                const float* logits, float* loss, float* max, float* log_sum) {
  if (params.rows == 0) return 0;
  return Launch(&CrossEntropyKernel, ShapeForRows(params.rows, params.size), stream, params, logits,
                loss, max, log_sum);
}

LaunchResult LaunchCrossEntropyGrad(StreamHandle stream, const CrossEntropyParams& params,
                                    const float* logits, const float* max, const float* log_sum,
                                    const float* dloss, float* dlogits) {
  if (params.rows == 0) return 0;
  return Launch(&CrossEntropyGradKernel, ShapeForRows(params.rows, params.size), stream, params,
                logits, max, log_sum, dloss, dlogits);
}

}  // namespace penstock::kernels::cuda
