// Launches of softmax attention in tiles, so that nothing of size queries x keys is stored: Dao et
// al., "FlashAttention" (2022), with the loop order of Dao, "FlashAttention-2" (2023). The gradient
// goes over the tiles twice, once for the keys and once for the queries, instead of adding up by
// atomic operations, so that it has the same bits every time.
//
// Operands of 16 bits go to tensor cores where they can (tensor_attention.h). Otherwise a warp
// works on kRowsPerWarp rows at a time; of the other side a tile of 32 rows lies in shared memory
// as floats, one for each lane. Products are plain multiply-adds in float.
//
// T, of queries, keys and values: float, BFloat16 or Float16. R, of results: T, or float.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_ATTENTION_H_
#define PENSTOCK_KERNELS_CUDA_ATTENTION_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/attention_shape.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

inline constexpr int64_t kMaxHeadWidth = 256;
inline constexpr int kRowsPerWarp = 4;
inline constexpr int kAttentionWarps = 4;

struct AttentionShape : kernels::AttentionShape {
  // For a cache: starts[b] keys precede the first query of batch b. Query i is also key starts[b] +
  // i; queries whose key would lie beyond the cache see nothing. Data null: none.
  Indices starts = {};
};

// Lets the kernels of these types run on the current device; once, before the first launch.
template <typename T, typename R>
LaunchResult PrepareAttention();

// How the kernels without tensor cores are launched for `rows` rows of batch x heads; for tests,
// too.
LaunchShape AttentionLaunch(int64_t batch, int64_t heads, int64_t rows, int64_t width,
                            bool is_gradient);

// o = softmax(q k' / sqrt(width)) v; lse may be null. A query that sees no key gets zeros and an
// lse of -inf. With `so_far`, laid out as o, and `lse_so_far`, the result is that of all keys
// together.
template <typename T, typename R>
struct AttentionOperands {
  HeadTensor<const T> q, k, v;
  HeadTensor<R> o;
  float* lse = nullptr;
  const R* so_far = nullptr;
  const float* lse_so_far = nullptr;
};
template <typename T, typename R>
LaunchResult LaunchAttention(StreamHandle stream, const AttentionShape& shape,
                             const AttentionOperands<T, R>& operands);

// Puts keys and values of `rows` new tokens a batch into the cache [batch, size, 2, heads, width],
// from row starts[batch] on; rows beyond its end are dropped. A start outside [0, size] is
// reported, and its tokens dropped.
template <typename T>
struct CacheUpdate {
  int64_t batch = 0;
  int64_t rows = 0;
  int64_t size = 0;
  int64_t row_width = 0;  // heads x width
  const T* keys = nullptr;
  const T* values = nullptr;
  int64_t stride = 0;  // between rows of keys and of values
  Indices starts = {};
  FaultSite site;
};
template <typename T>
LaunchResult LaunchCacheUpdate(StreamHandle stream, const CacheUpdate<T>& update, T* cache);

// `deltas`: scratch of batch x heads x queries floats.
template <typename T, typename R>
struct AttentionGradOperands {
  HeadTensor<const T> q, k, v, o, d_o;
  const float* lse = nullptr;
  HeadTensor<R> dq, dk, dv;
  float* deltas = nullptr;
};
template <typename T, typename R>
LaunchResult LaunchAttentionGrad(StreamHandle stream, const AttentionShape& shape,
                                 const AttentionGradOperands<T, R>& operands);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_ATTENTION_H_
