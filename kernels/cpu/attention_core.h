// Softmax attention in tiles, so that nothing of size queries x keys is ever stored: Dao et al.,
// "FlashAttention" (2022) with the loop order of Dao, "FlashAttention-2" (2023).
//
// Forward: for a block of queries, blocks of keys are visited in order with a running maximum and
// sum a row (online softmax, Milakov & Gimelshein 2018); the log-sum-exp of each row is what
// backward needs to recompute the probabilities of a tile. Blocks that the causal mask hides are
// skipped.
//
// Tensors are heads of [rows, width] matrices with any strides but contiguous width, so that
// [b, h, s, d] and the slices of [b, s, 3, h, d] are the same to this code.
//
// Several heads of queries may share one of keys and values: head i has head i / (heads /
// key_heads). The gradients of keys and values are then sums over those heads.
//
// T is float, double or BFloat16, for which statistics and sums are f32.
//
// Thread rule: one call at a time a workspace. Invariant: each result is computed by one thread in
// one order, whatever the number of threads.

#ifndef PENSTOCK_KERNELS_CPU_ATTENTION_CORE_H_
#define PENSTOCK_KERNELS_CPU_ATTENTION_CORE_H_

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/attention_shape.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {

template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape, int num_threads);

// What queries have of other keys: the result of AttentionForward on those.
template <typename T>
struct AttentionSoFar {
  HeadTensor<const T> o;  // laid out as the result, which it may be
  const T* lse = nullptr;
};

// o = softmax(q k' / sqrt(width)) v; lse[b, h, s], contiguous, may be null. A query that sees no
// key gets zeros and an lse of -inf. With `so_far`, not of BFloat16, the result is that of all keys
// together.
template <typename T>
void AttentionForward(ThreadPool& pool, const AttentionShape& shape, HeadTensor<const T> q,
                      HeadTensor<const T> k, HeadTensor<const T> v, HeadTensor<T> o, Arith<T>* lse,
                      void* workspace, const AttentionSoFar<T>* so_far = nullptr);

template <typename T>
size_t AttentionGradWorkspaceBytes(const AttentionShape& shape, int num_threads);

template <typename T>
struct AttentionGradOperands {
  HeadTensor<const T> q, k, v, o, d_o;
  const Arith<T>* lse = nullptr;
  HeadTensor<T> dq, dk, dv;
};

template <typename T>
void AttentionBackward(ThreadPool& pool, const AttentionShape& shape,
                       const AttentionGradOperands<T>& x, void* workspace);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ATTENTION_CORE_H_
