#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/tensor_attention.h"

namespace penstock::kernels::cuda {
namespace {

constexpr int kTile = kWarp;                                // rows of the other side at a time
constexpr int kBlockRows = kRowsPerWarp * kAttentionWarps;  // rows of a block
constexpr int kMaxColumns = static_cast<int>(kMaxHeadWidth) / kWarp;  // of a lane
constexpr unsigned kAllLanes = 0xffffffffu;

// Rows [first, first + count) of `limit` rows, zeros beyond; `stride` floats apart in `to`. By all
// threads of the block.
template <typename T>
__device__ void LoadRows(const HeadTensor<const T>& from, int64_t batch, int64_t head,
                         int64_t first, int count, int64_t limit, int width, int stride,
                         float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count * width;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / width;
    const int column = i % width;
    to[row * stride + column] =
        first + row < limit ? Widen(HeadRow(from, batch, head, first + row)[column]) : 0.0f;
  }
}

__device__ float Dot(const float* a, const float* b, int width) {
  float sum = 0;
  for (int i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

// Rows of a warp times columns of a lane.
struct Sums {
  float v[kRowsPerWarp][kMaxColumns];
};

__device__ void Clear(Sums* sums) {
  for (int r = 0; r < kRowsPerWarp; ++r) {
    for (int c = 0; c < kMaxColumns; ++c) sums->v[r][c] = 0;
  }
}

// sums[r] += weight[r] times the row, for the r whose bit is set in `rows`.
__device__ void AddWeightedRow(const float* weight, unsigned rows, const float* row, int width,
                               Sums* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int c = 0; c < kMaxColumns; ++c) {
    const int column = lane + c * kWarp;
    if (column >= width) continue;
    const float element = row[column];
    for (int r = 0; r < kRowsPerWarp; ++r) {
      if ((rows >> r & 1u) != 0) sums->v[r][c] += weight[r] * element;
    }
  }
}

// Whether row r of the warp and the row of each lane see each other.
struct Seen {
  bool v[kRowsPerWarp];
};

// sums[r] += sum over the tile's rows j of weights[r] of lane j times row j. By all lanes. Rows
// that are not seen are left out, not multiplied by 0: they may hold NaN or infinity.
__device__ void AddWeightedRows(const float* weights, const Seen& seen, const float* tile,
                                int width, int stride, Sums* sums) {
  constexpr unsigned kAllRows = (1u << kRowsPerWarp) - 1;
  unsigned lanes[kRowsPerWarp];
  for (int r = 0; r < kRowsPerWarp; ++r) lanes[r] = __ballot_sync(kAllLanes, seen.v[r] ? 1 : 0);
  for (int j = 0; j < kTile; ++j) {
    float weight[kRowsPerWarp];
    unsigned rows = 0;
    for (int r = 0; r < kRowsPerWarp; ++r) {
      weight[r] = __shfl_sync(kAllLanes, weights[r], j);
      rows |= (lanes[r] >> j & 1u) << r;
    }
    const float* row = tile + j * stride;
    if (rows == kAllRows) {
      AddWeightedRow(weight, kAllRows, row, width, sums);
    } else if (rows != 0) {
      AddWeightedRow(weight, rows, row, width, sums);
    }
  }
}

// Stores row r of the sums, times `factor`.
template <typename R>
__device__ void StoreSums(const Sums& sums, int r, float factor, int width, R* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int c = 0; c < kMaxColumns; ++c) {
    const int column = lane + c * kWarp;
    if (column < width) to[column] = Narrow<R>(sums.v[r][c] * factor);
  }
}

// The first row of the block's, and which batch and head they are of.
struct Place {
  int64_t batch;
  int64_t head;
  int64_t first;
};

__device__ Place PlaceOf(int64_t block, int64_t heads, int64_t rows) {
  const int64_t row_blocks = (rows + kBlockRows - 1) / kBlockRows;
  const int64_t head = block / row_blocks;
  return {head / heads, head % heads, block % row_blocks * kBlockRows};
}

template <typename T, typename R>
__global__ void AttentionKernel(AttentionShape whole, AttentionOperands<T, R> x, int64_t num_blocks,
                                float scale) {
  const int width = static_cast<int>(whole.width);
  const int stride = width + 1;  // lanes read columns: if it is odd, no bank twice
  float* queries = SharedMemory<float>();
  float* keys = queries + kBlockRows * stride;
  float* values = keys + kTile * stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_of_warp = static_cast<int>(threadIdx.x) / kWarp * kRowsPerWarp;
  for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    const Place place = PlaceOf(block, whole.heads, whole.queries);
    const AttentionShape shape = ShapeOfBatch(whole, place.batch);
    const int64_t key_head = place.head / (shape.heads / shape.key_heads);
    __syncthreads();
    LoadRows(x.q, place.batch, place.head, place.first, kBlockRows, shape.queries, width, stride,
             queries);
    const int64_t lse_begin = (place.batch * shape.heads + place.head) * shape.lse_rows;
    Sums sums;
    float max[kRowsPerWarp];
    float total[kRowsPerWarp];
    Clear(&sums);
    for (int r = 0; r < kRowsPerWarp; ++r) {
      max[r] = -INFINITY;
      total[r] = 0;
      const int64_t query = place.first + first_of_warp + r;
      if (x.so_far == nullptr || query >= shape.queries) continue;
      // What the keys before have given is one more key of weight e^lse.
      max[r] = x.lse_so_far[lse_begin + query];
      total[r] = max[r] == -INFINITY ? 0.0f : 1.0f;
      const R* row =
          HeadRow(HeadTensor<const R>{x.so_far, x.o.strides}, place.batch, place.head, query);
      for (int c = 0; c < kMaxColumns; ++c) {
        const int column = lane + c * kWarp;
        if (column < width && total[r] > 0) sums.v[r][c] = Widen(row[column]);
      }
    }
    const int64_t end = KeysSeen(shape, place.first + kBlockRows);
    for (int64_t first_key = 0; first_key < end; first_key += kTile) {
      __syncthreads();
      LoadRows(x.k, place.batch, key_head, first_key, kTile, shape.keys, width, stride, keys);
      LoadRows(x.v, place.batch, key_head, first_key, kTile, shape.keys, width, stride, values);
      __syncthreads();
      float weights[kRowsPerWarp];
      Seen seen;
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const int64_t query = place.first + first_of_warp + r;
        seen.v[r] = Sees(shape, query, first_key + lane);
        const float score =
            seen.v[r]
                ? Dot(queries + (first_of_warp + r) * stride, keys + lane * stride, width) * scale
                : -INFINITY;
        const float new_max = ReduceWarp(MaxOp()(score, max[r]), MaxOp());
        // A row that has seen no key stays 0.
        const bool is_empty = new_max == -INFINITY;
        weights[r] = is_empty || score == -INFINITY ? 0.0f : expf(score - new_max);
        const float factor = is_empty || max[r] == -INFINITY ? 0.0f : expf(max[r] - new_max);
        total[r] = total[r] * factor + ReduceWarp(weights[r], SumOp());
        for (int c = 0; c < kMaxColumns; ++c) sums.v[r][c] *= factor;
        max[r] = new_max;
      }
      AddWeightedRows(weights, seen, values, width, stride, &sums);
    }
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int64_t query = place.first + first_of_warp + r;
      if (query >= whole.queries) continue;
      const bool is_empty = max[r] == -INFINITY;
      StoreSums(sums, r, is_empty ? 0.0f : 1 / total[r], width,
                HeadRow(x.o, place.batch, place.head, query));
      if (lane == 0 && x.lse != nullptr) {
        x.lse[lse_begin + query] = is_empty ? -INFINITY : max[r] + logf(total[r]);
      }
    }
  }
}

template <typename T>
__global__ void CacheUpdateKernel(CacheUpdate<T> x, T* cache) {
  const int64_t count = x.batch * x.rows * x.row_width;
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    const int64_t column = i % x.row_width;
    const int64_t token = i / x.row_width;  // of all batches
    const int64_t batch = token / x.rows;
    const int64_t start = LoadIndex(x.starts, batch);
    if (!CheckIndex(x.site, start, x.size + 1)) continue;
    const int64_t row = start + token % x.rows;
    if (row >= x.size) continue;
    T* to = cache + (batch * x.size + row) * 2 * x.row_width + column;
    to[0] = x.keys[token * x.stride + column];
    to[x.row_width] = x.values[token * x.stride + column];
  }
}

// deltas = the products of o and do, a row for each query of each head. A warp a row.
template <typename T, typename R>
__global__ void DeltaKernel(AttentionShape shape, AttentionGradOperands<T, R> x) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t num_rows = shape.batch * shape.heads * shape.queries;
  const int64_t num_warps = ThreadCount() / kWarp;
  for (int64_t row = ThreadIndex() / kWarp; row < num_rows; row += num_warps) {
    const int64_t query = row % shape.queries;
    const int64_t head = row / shape.queries % shape.heads;
    const int64_t batch = row / shape.queries / shape.heads;
    const T* o = HeadRow(x.o, batch, head, query);
    const T* d_o = HeadRow(x.d_o, batch, head, query);
    float sum = 0;
    for (int64_t i = lane; i < shape.width; i += kWarp) sum += Widen(o[i]) * Widen(d_o[i]);
    sum = ReduceWarp(sum, SumOp());
    if (lane == 0) x.deltas[row] = sum;
  }
}

// The softmax weight of a pair, and the derivative of its score, from the recomputed products.
struct Pair {
  float weight;
  float slope;
};
__device__ Pair PairOf(float product, float weight_grad, float lse, float delta, float scale) {
  const float weight = expf(product * scale - lse);
  return {weight, weight * (weight_grad - delta) * scale};
}

// dq: warps have queries, tiles go over keys.
template <typename T, typename R>
__global__ void QueryGradKernel(AttentionShape shape, AttentionGradOperands<T, R> x,
                                int64_t num_blocks, float scale) {
  const int width = static_cast<int>(shape.width);
  const int stride = width + 1;
  float* queries = SharedMemory<float>();
  float* d_o = queries + kBlockRows * stride;
  float* keys = d_o + kBlockRows * stride;
  float* values = keys + kTile * stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_of_warp = static_cast<int>(threadIdx.x) / kWarp * kRowsPerWarp;
  for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    const Place place = PlaceOf(block, shape.heads, shape.queries);
    const int64_t key_head = place.head / (shape.heads / shape.key_heads);
    __syncthreads();
    LoadRows(x.q, place.batch, place.head, place.first, kBlockRows, shape.queries, width, stride,
             queries);
    LoadRows(x.d_o, place.batch, place.head, place.first, kBlockRows, shape.queries, width, stride,
             d_o);
    Sums sums;
    Clear(&sums);
    const int64_t end = KeysSeen(shape, place.first + kBlockRows);
    for (int64_t first_key = 0; first_key < end; first_key += kTile) {
      __syncthreads();
      LoadRows(x.k, place.batch, key_head, first_key, kTile, shape.keys, width, stride, keys);
      LoadRows(x.v, place.batch, key_head, first_key, kTile, shape.keys, width, stride, values);
      __syncthreads();
      float slopes[kRowsPerWarp];
      Seen seen;
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const int row = first_of_warp + r;
        const int64_t query = place.first + row;
        slopes[r] = 0;
        seen.v[r] = Sees(shape, query, first_key + lane);
        if (!seen.v[r]) continue;
        const int64_t head = place.batch * shape.heads + place.head;
        slopes[r] = PairOf(Dot(queries + row * stride, keys + lane * stride, width),
                           Dot(d_o + row * stride, values + lane * stride, width),
                           x.lse[head * shape.lse_rows + query],
                           x.deltas[head * shape.queries + query], scale)
                        .slope;
      }
      AddWeightedRows(slopes, seen, keys, width, stride, &sums);
    }
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int64_t query = place.first + first_of_warp + r;
      if (query < shape.queries) {
        StoreSums(sums, r, 1, width, HeadRow(x.dq, place.batch, place.head, query));
      }
    }
  }
}

// dk and dv: warps have keys, tiles go over the queries of all heads that share them.
template <typename T, typename R>
__global__ void KeyGradKernel(AttentionShape shape, AttentionGradOperands<T, R> x,
                              int64_t num_blocks, float scale) {
  const int width = static_cast<int>(shape.width);
  const int stride = width + 1;
  float* keys = SharedMemory<float>();
  float* values = keys + kBlockRows * stride;
  float* queries = values + kBlockRows * stride;
  float* d_o = queries + kTile * stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_of_warp = static_cast<int>(threadIdx.x) / kWarp * kRowsPerWarp;
  const int64_t heads_per_key = shape.heads / shape.key_heads;
  for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    const Place place = PlaceOf(block, shape.key_heads, shape.keys);
    __syncthreads();
    LoadRows(x.k, place.batch, place.head, place.first, kBlockRows, shape.keys, width, stride,
             keys);
    LoadRows(x.v, place.batch, place.head, place.first, kBlockRows, shape.keys, width, stride,
             values);
    Sums key_sums;
    Sums value_sums;
    Clear(&key_sums);
    Clear(&value_sums);
    // The first query that sees the first key of the block.
    int64_t first_query = shape.is_causal ? place.first - shape.causal_offset : 0;
    if (first_query < 0) first_query = 0;
    for (int64_t i = 0; i < heads_per_key; ++i) {
      const int64_t head = place.head * heads_per_key + i;
      const int64_t of_head = place.batch * shape.heads + head;
      for (int64_t begin = first_query; begin < shape.queries; begin += kTile) {
        __syncthreads();
        LoadRows(x.q, place.batch, head, begin, kTile, shape.queries, width, stride, queries);
        LoadRows(x.d_o, place.batch, head, begin, kTile, shape.queries, width, stride, d_o);
        __syncthreads();
        const int64_t query = begin + lane;
        const float lse = query < shape.queries ? x.lse[of_head * shape.lse_rows + query] : 0.0f;
        const float delta =
            query < shape.queries ? x.deltas[of_head * shape.queries + query] : 0.0f;
        float weights[kRowsPerWarp];
        float slopes[kRowsPerWarp];
        Seen seen;
        for (int r = 0; r < kRowsPerWarp; ++r) {
          const int row = first_of_warp + r;
          weights[r] = slopes[r] = 0;
          seen.v[r] = Sees(shape, query, place.first + row);
          if (!seen.v[r]) continue;
          const Pair pair =
              PairOf(Dot(keys + row * stride, queries + lane * stride, width),
                     Dot(values + row * stride, d_o + lane * stride, width), lse, delta, scale);
          weights[r] = pair.weight;
          slopes[r] = pair.slope;
        }
        AddWeightedRows(slopes, seen, queries, width, stride, &key_sums);
        AddWeightedRows(weights, seen, d_o, width, stride, &value_sums);
      }
    }
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int64_t key = place.first + first_of_warp + r;
      if (key >= shape.keys) continue;
      StoreSums(key_sums, r, 1, width, HeadRow(x.dk, place.batch, place.head, key));
      StoreSums(value_sums, r, 1, width, HeadRow(x.dv, place.batch, place.head, key));
    }
  }
}

int64_t NumBlocks(int64_t batch, int64_t heads, int64_t rows) {
  return batch * heads * CeilDiv(rows, kBlockRows);
}

}  // namespace

template <typename T, typename R>
LaunchResult PrepareAttention() {
  LaunchResult result = AllowSharedMemory(&AttentionKernel<T, R>, kMaxSharedBytes);
  if (result == 0) result = AllowSharedMemory(&QueryGradKernel<T, R>, kMaxSharedBytes);
  if (result == 0) result = AllowSharedMemory(&KeyGradKernel<T, R>, kMaxSharedBytes);
  if constexpr (kIsHalf<T>) {
    if (result == 0) result = PrepareTensorAttention<T>();
    if (result == 0) result = PrepareTensorAttentionGrad<T>();
  }
  return result;
}

LaunchShape AttentionLaunch(int64_t batch, int64_t heads, int64_t rows, int64_t width,
                            bool is_gradient) {
  const int64_t blocks = NumBlocks(batch, heads, rows);
  const int64_t own_rows = (is_gradient ? 2 : 1) * kBlockRows;
  const int64_t floats = (own_rows + 2 * kTile) * (width + 1);
  return {.grid_x = static_cast<unsigned>(blocks < 1            ? 1
                                          : blocks < kMaxBlocks ? blocks
                                                                : kMaxBlocks),
          .threads_x = kWarp * kAttentionWarps,
          .shared_bytes = static_cast<size_t>(floats) * sizeof(float)};
}

template <typename T, typename R>
LaunchResult LaunchAttention(StreamHandle stream, const AttentionShape& shape,
                             const AttentionOperands<T, R>& operands) {
  if constexpr (kIsHalf<T>) {
    const TensorAttentionOperands<T> x(operands);
    if (IsForTensorCores(shape, x)) return LaunchTensorAttention(stream, shape, x);
  }
  const int64_t blocks = NumBlocks(shape.batch, shape.heads, shape.queries);
  if (blocks == 0) return 0;
  return Launch(&AttentionKernel<T, R>,
                AttentionLaunch(shape.batch, shape.heads, shape.queries, shape.width, false),
                stream, shape, operands, blocks, ScaleOf(shape));
}

template <typename T>
LaunchResult LaunchCacheUpdate(StreamHandle stream, const CacheUpdate<T>& update, T* cache) {
  const int64_t count = update.batch * update.rows * update.row_width;
  if (count == 0) return 0;
  return Launch(&CacheUpdateKernel<T>, ShapeForLoop(count), stream, update, cache);
}

template <typename T, typename R>
LaunchResult LaunchAttentionGrad(StreamHandle stream, const AttentionShape& shape,
                                 const AttentionGradOperands<T, R>& operands) {
  if constexpr (kIsHalf<T>) {
    const TensorAttentionGradOperands<T> x(operands);
    if (IsForTensorCores(shape, x)) return LaunchTensorAttentionGrad(stream, shape, x);
  }
  const int64_t query_blocks = NumBlocks(shape.batch, shape.heads, shape.queries);
  const int64_t key_blocks = NumBlocks(shape.batch, shape.key_heads, shape.keys);
  const float scale = ScaleOf(shape);
  if (query_blocks > 0) {
    const int64_t rows = shape.batch * shape.heads * shape.queries;
    LaunchResult launched =
        Launch(&DeltaKernel<T, R>, ShapeForLoop(rows * kWarp), stream, shape, operands);
    if (launched != 0) return launched;
    launched = Launch(&QueryGradKernel<T, R>,
                      AttentionLaunch(shape.batch, shape.heads, shape.queries, shape.width, true),
                      stream, shape, operands, query_blocks, scale);
    if (launched != 0) return launched;
  }
  if (key_blocks == 0) return 0;
  return Launch(&KeyGradKernel<T, R>,
                AttentionLaunch(shape.batch, shape.key_heads, shape.keys, shape.width, true),
                stream, shape, operands, key_blocks, scale);
}

// ---- Instances.

template LaunchResult PrepareAttention<float, float>();
template LaunchResult PrepareAttention<BFloat16, BFloat16>();
template LaunchResult PrepareAttention<BFloat16, float>();
template LaunchResult PrepareAttention<Float16, Float16>();
template LaunchResult PrepareAttention<Float16, float>();

template LaunchResult LaunchAttention(StreamHandle, const AttentionShape&,
                                      const AttentionOperands<float, float>&);
template LaunchResult LaunchAttention(StreamHandle, const AttentionShape&,
                                      const AttentionOperands<BFloat16, BFloat16>&);
template LaunchResult LaunchAttention(StreamHandle, const AttentionShape&,
                                      const AttentionOperands<BFloat16, float>&);
template LaunchResult LaunchAttention(StreamHandle, const AttentionShape&,
                                      const AttentionOperands<Float16, Float16>&);
template LaunchResult LaunchAttention(StreamHandle, const AttentionShape&,
                                      const AttentionOperands<Float16, float>&);

template LaunchResult LaunchCacheUpdate(StreamHandle, const CacheUpdate<float>&, float*);
template LaunchResult LaunchCacheUpdate(StreamHandle, const CacheUpdate<BFloat16>&, BFloat16*);
template LaunchResult LaunchCacheUpdate(StreamHandle, const CacheUpdate<Float16>&, Float16*);

template LaunchResult LaunchAttentionGrad(StreamHandle, const AttentionShape&,
                                          const AttentionGradOperands<float, float>&);
template LaunchResult LaunchAttentionGrad(StreamHandle, const AttentionShape&,
                                          const AttentionGradOperands<BFloat16, BFloat16>&);
template LaunchResult LaunchAttentionGrad(StreamHandle, const AttentionShape&,
                                          const AttentionGradOperands<BFloat16, float>&);
template LaunchResult LaunchAttentionGrad(StreamHandle, const AttentionShape&,
                                          const AttentionGradOperands<Float16, Float16>&);
template LaunchResult LaunchAttentionGrad(StreamHandle, const AttentionShape&,
                                          const AttentionGradOperands<Float16, float>&);

}  // namespace penstock::kernels::cuda
