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

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention.h"

namespace penstock::kernels::cuda {

inline constexpr int kMaxTensorHeadWidth = 128;

// Heads are padded to the width that kernels are compiled for.
constexpr int PaddedHeadWidth(int64_t width) { return width <= 64 ? 64 : kMaxTensorHeadWidth; }

// How a kernel is cut. A block keeps its rows of `own` operands in shared memory, and two buffers
// for the rows of the other side's two operands.
struct AttentionCut {
  int own = 1;
  int tiles = 1;   // of 16 rows that a warp works on
  int other = 32;  // rows of the other side at a time

  static constexpr int kWarps = 4;
  static constexpr size_t kMaxStaticBytes = 512;  // of __shared__ variables, beside shared_bytes()
  static constexpr unsigned kThreads = kWarps * kWarp;

  constexpr int rows() const { return kWarps * tiles * 16; }  // of a block
  constexpr size_t shared_bytes(int padded_width) const {
    constexpr size_t kElementBytes = 2;
    return kElementBytes * static_cast<size_t>(padded_width * (own * rows() + 4 * other));
  }
};
constexpr AttentionCut ForwardCut(int64_t width) {
  return {.own = 1, .tiles = width <= 64 ? 2 : 1, .other = 64};
}
// Of both kernels of the gradient: rows are queries in one and keys in the other.
constexpr AttentionCut GradCut(int64_t width) {
  return {.own = 2, .tiles = width <= 64 ? 2 : 1, .other = 32};
}

// For `rows` rows of each of `heads` heads, those of all batches.
LaunchShape TensorAttentionLaunch(const AttentionCut& cut, int64_t heads, int64_t rows,
                                  int64_t width);

// Results are of the operands' type or floats.
struct AttentionResult {
  void* data = nullptr;
  HeadStrides strides;
  bool is_float = false;
};
template <typename R>
AttentionResult ResultOf(const HeadTensor<R>& tensor) {
  return {tensor.data, tensor.strides, std::is_same_v<R, float>};
}

// AttentionOperands and AttentionGradOperands of any results.
template <typename T>
struct TensorAttentionOperands {
  template <typename R>
  explicit TensorAttentionOperands(const AttentionOperands<T, R>& x)
      : q(x.q),
        k(x.k),
        v(x.v),
        o(ResultOf(x.o)),
        so_far(x.so_far),
        lse(x.lse),
        lse_so_far(x.lse_so_far) {}

  HeadTensor<const T> q, k, v;
  AttentionResult o;
  const void* so_far;  // as o
  float* lse;
  const float* lse_so_far;
};
template <typename T>
struct TensorAttentionGradOperands {
  template <typename R>
  explicit TensorAttentionGradOperands(const AttentionGradOperands<T, R>& x)
      : q(x.q),
        k(x.k),
        v(x.v),
        o(x.o),
        d_o(x.d_o),
        dq(ResultOf(x.dq)),
        dk(ResultOf(x.dk)),
        dv(ResultOf(x.dv)),
        lse(x.lse),
        deltas(x.deltas) {}

  HeadTensor<const T> q, k, v, o, d_o;
  AttentionResult dq, dk, dv;
  const float* lse;
  float* deltas;
};

// Whether these kernels take them: operands are read 16 bytes at a time, and results are written
// two elements at a time. T: BFloat16 or Float16.
template <typename T>
bool IsForTensorCores(const AttentionShape& shape, const TensorAttentionOperands<T>& operands);
template <typename T>
bool IsForTensorCores(const AttentionShape& shape, const TensorAttentionGradOperands<T>& operands);

// Lets the kernels of this type run on the current device.
template <typename T>
LaunchResult PrepareTensorAttention();
template <typename T>
LaunchResult PrepareTensorAttentionGrad();

// As LaunchAttention and LaunchAttentionGrad. REQUIRES: IsForTensorCores.
template <typename T>
LaunchResult LaunchTensorAttention(StreamHandle stream, const AttentionShape& shape,
                                   const TensorAttentionOperands<T>& operands);
template <typename T>
LaunchResult LaunchTensorAttentionGrad(StreamHandle stream, const AttentionShape& shape,
                                       const TensorAttentionGradOperands<T>& operands);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_TENSOR_ATTENTION_H_
