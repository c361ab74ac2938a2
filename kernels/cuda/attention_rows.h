// Which rows of which head a query sees: what the kernels of attention share. Device code.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CUDA_ATTENTION_ROWS_H_
#define PENSTOCK_KERNELS_CUDA_ATTENTION_ROWS_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {

template <typename T>
__device__ inline T* HeadRow(const HeadTensor<T>& tensor, int64_t batch, int64_t head,
                             int64_t row) {
  return tensor.data + batch * tensor.strides.batch + head * tensor.strides.head +
         row * tensor.strides.row;
}

// Whether query i sees key j.
__device__ inline bool Sees(const AttentionShape& shape, int64_t query, int64_t key) {
  return query < shape.queries && key < shape.keys &&
         (!shape.is_causal || key <= query + shape.causal_offset);
}

// The shape with the offset of one batch. Only that of a cache has starts.
__device__ inline AttentionShape ShapeOfBatch(const AttentionShape& shape, int64_t batch) {
  AttentionShape of_batch = shape;
  if (shape.starts.data == nullptr) return of_batch;
  of_batch.causal_offset += LoadIndex(shape.starts, batch);
  const int64_t room = shape.keys - of_batch.causal_offset;
  of_batch.queries = room < 0 ? 0 : room < shape.queries ? room : shape.queries;
  return of_batch;
}

// Keys that some query below `last_query` sees.
__device__ inline int64_t KeysSeen(const AttentionShape& shape, int64_t last_query) {
  if (!shape.is_causal) return shape.keys;
  const int64_t seen = last_query + shape.causal_offset;
  return seen < 0 ? 0 : seen < shape.keys ? seen : shape.keys;
}

// Of scores, before their softmax. Host code.
inline float ScaleOf(const AttentionShape& shape) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(shape.width)));
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_ATTENTION_ROWS_H_
