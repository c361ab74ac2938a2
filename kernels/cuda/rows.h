// Launches of the kernels that normalise rows: softmax, norms, cross-entropy and their gradients. A
// block works on a row; sums are in float.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_ROWS_H_
#define PENSTOCK_KERNELS_CUDA_ROWS_H_

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// [outer, size, inner], with a row for each of outer and inner; contiguous rows have inner = 1.
struct RowShape {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;

  int64_t count() const { return outer * inner; }
};

// The result may be the memory of the first operand, for gradients also of the second.
LaunchResult LaunchSoftmax(StreamHandle stream, const RowShape& shape, const float* x, float* y);
LaunchResult LaunchSoftmaxGrad(StreamHandle stream, const RowShape& shape, const float* y,
                               const float* dy, float* dx);

// Layer norm, or without `bias` and `mean` RMS norm. `mean` and `rstd` may be null: not wanted.
struct NormParams {
  int64_t rows = 0;
  int64_t size = 0;
  float epsilon = 1e-5f;
};
LaunchResult LaunchLayerNorm(StreamHandle stream, const NormParams& params, const float* x,
                             const float* scale, const float* bias, float* y, float* mean,
                             float* rstd);
LaunchResult LaunchRmsNorm(StreamHandle stream, const NormParams& params, const float* x,
                           const float* scale, float* y, float* rstd);
// With `mean` null the gradient of RMS norm.
LaunchResult LaunchNormGrad(StreamHandle stream, const NormParams& params, const float* dy,
                            const float* x, const float* scale, const float* mean,
                            const float* rstd, float* dx);

// Labels outside [0, limit) are reported; their row gets NaN.
struct CrossEntropyParams {
  int64_t rows = 0;
  int64_t size = 0;   // of the tile's part of the vocabulary
  int64_t first = 0;  // where that begins
  int64_t limit = 0;  // of the vocabulary
  Indices labels;
  FaultSite site;
};
// `max` and `log_sum` may be null. REQUIRES: the tile has the whole vocabulary.
LaunchResult LaunchCrossEntropy(StreamHandle stream, const CrossEntropyParams& params,
                                const float* logits, float* loss, float* max, float* log_sum);
LaunchResult LaunchCrossEntropyGrad(StreamHandle stream, const CrossEntropyParams& params,
                                    const float* logits, const float* max, const float* log_sum,
                                    const float* dloss, float* dlogits);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_ROWS_H_
