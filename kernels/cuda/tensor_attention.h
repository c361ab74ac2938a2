// Attention whose products run on tensor cores, for operands of 16 bits: Dao, "FlashAttention-2"
// (2023). Scores, softmax and sums are in float; weights and the derivatives of scores are rounded
// to the operands' type before they are multiplied.
//
// The gradient goes over the pairs twice, once with queries and once with keys in registers, so
// that nothing is added up by atomic operations: it has the same bits every time, for 7 products
// instead of 5.
//
// A row of values that some query of a block sees is multiplied by 0 for the other queries of the
// block: if it holds NaN or infinity, theirs become NaN, too.
//
// Thread rule: as attention.h.

#ifndef PENSTOCK_KERNELS_CUDA_TENSOR_ATTENTION_H_
#define PENSTOCK_KERNELS_CUDA_TENSOR_ATTENTION_H_

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace penstock::kernels::cuda {

inline constexpr int64_t kMaxTensorHeadWidth = 128;

// Whether these kernels take them: operands are read 16 bytes at a time, and results are written
// two elements at a time.
template <typename T, typename R>
bool IsForTensorCores(const AttentionShape& shape, const AttentionOperands<T, R>& operands);
template <typename T, typename R>
bool IsForTensorCores(const AttentionShape& shape, const AttentionGradOperands<T, R>& operands);

// Lets the kernels of this type run on the current device.
template <typename T>
LaunchResult PrepareTensorAttention();

// The kernels: queries x keys, and of the gradient those of queries and those of keys.
enum class AttentionPass : int8_t { kForward, kQueryGrad, kKeyGrad };

// Rows of queries, or of keys, of a block.
int TensorAttentionRows(AttentionPass pass, int64_t width);
LaunchShape TensorAttentionLaunch(AttentionPass pass, int64_t batch, int64_t heads, int64_t rows,
                                  int64_t width);

// As LaunchAttention and LaunchAttentionGrad. REQUIRES: IsForTensorCores.
template <typename T, typename R>
LaunchResult LaunchTensorAttention(StreamHandle stream, const AttentionShape& shape,
                                   const AttentionOperands<T, R>& operands);
template <typename T, typename R>
LaunchResult LaunchTensorAttentionGrad(StreamHandle stream, const AttentionShape& shape,
                                       const AttentionGradOperands<T, R>& operands);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_TENSOR_ATTENTION_H_
