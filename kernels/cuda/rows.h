// Launches of the kernels that normalise rows: softmax, norms, cross-entropy and their gradients. A
// block works on a row, or a warp on a short row of a norm; sums are in float. T: float, BFloat16
// or Float16; statistics and losses are float. Where addresses and the size allow it, 16 bytes move
// at a time; only short rows of norms have sums in another order if not.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_ROWS_H_
#define PENSTOCK_KERNELS_CUDA_ROWS_H_

#include <cstdint>

#include "base/half.h"
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
template <typename T>
LaunchResult LaunchSoftmax(StreamHandle stream, const RowShape& shape, const T* x, T* y);
template <typename T>
LaunchResult LaunchSoftmaxGrad(StreamHandle stream, const RowShape& shape, const T* y, const T* dy,
                               T* dx);

// Layer norm, or without `bias` and `mean` RMS norm. `mean` and `rstd` may be null: not wanted.
struct NormParams {
  int64_t rows = 0;
  int64_t size = 0;
  float epsilon = 1e-5f;
};
template <typename T>
LaunchResult LaunchLayerNorm(StreamHandle stream, const NormParams& params, const T* x,
                             const T* scale, const T* bias, T* y, float* mean, float* rstd);
template <typename T>
LaunchResult LaunchRmsNorm(StreamHandle stream, const NormParams& params, const T* x,
                           const T* scale, T* y, float* rstd);
// With `mean` null the gradient of RMS norm. `r`, unless it is null, is added to it, and may be the
// memory of the result, too.
template <typename T>
LaunchResult LaunchNormGrad(StreamHandle stream, const NormParams& params, const T* dy, const T* x,
                            const T* scale, const float* mean, const float* rstd, const T* r,
                            T* dx);

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
template <typename T>
LaunchResult LaunchCrossEntropy(StreamHandle stream, const CrossEntropyParams& params,
                                const T* logits, float* loss, float* max, float* log_sum);
template <typename T>
LaunchResult LaunchCrossEntropyGrad(StreamHandle stream, const CrossEntropyParams& params,
                                    const T* logits, const float* max, const float* log_sum,
                                    const float* dloss, T* dlogits);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_ROWS_H_
