#include "kernels/cuda/tensor_attention.h"
#include "kernels/cuda/tensor_attention_device.h"

namespace penstock::kernels::cuda {
namespace {

// Rows [first, first + 16 kTiles) of the result, times a factor.
template <typename T, int kTiles, int kSums>
__device__ void StoreRows(const FragmentC (&sums)[kTiles][kSums], float factor,
                          const AttentionResult& to, int64_t batch, int64_t head, int64_t first,
                          int64_t limit, int width, int lane) {
#pragma unroll
  for (int half = 0; half < 2 * kTiles; ++half) {
    const int64_t row = first + ProductRow(lane, 2 * half);
    if (row >= limit) continue;
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      const int column = ProductColumn(lane, n, 0);
      if (column >= width) continue;
      const FragmentC& sum = sums[half / 2][n];
      StorePair<T>(to, batch, head, row, column, sum.v[half % 2 * 2] * factor,
                   sum.v[half % 2 * 2 + 1] * factor);
    }
  }
}

// dq, and the deltas: the products of o and do.
template <typename T, int kWidth>
__global__ void __launch_bounds__(AttentionCut::kThreads)
    QueryGradTensorKernel(AttentionShape shape, TensorAttentionGradOperands<T> x,
                          int64_t num_blocks, float scale) {
  constexpr int kKeys = kGradCut<kWidth>.other;
  constexpr int kTiles = kGradCut<kWidth>.tiles;
  constexpr int kRows = kGradRows<kWidth>;
  __shared__ float shared_deltas[kRows];
  static_assert(sizeof(shared_deltas) <= AttentionCut::kMaxStaticBytes);
  SharedRowsLayout<T, kWidth> layout;
  const SharedRows<T, kWidth> queries = layout.Take(kRows);
  const SharedRows<T, kWidth> d_o = layout.Take(kRows);
  const SharedRows<T, kWidth> keys[2] = {layout.Take(kKeys), layout.Take(kKeys)};
  const SharedRows<T, kWidth> values[2] = {layout.Take(kKeys), layout.Take(kKeys)};
  const int width = static_cast<int>(shape.width);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_of_warp = static_cast<int>(threadIdx.x) / kWarp * kTiles * kMmaRows;
  const float scale_log2 = scale * kLog2E;

  for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    const BlockPlace place =
        BlockPlaceOf(block, shape.batch, shape.heads, shape.queries, kRows, shape.is_causal);
    const int64_t key_head = place.head / (shape.heads / shape.key_heads);
    const int64_t of_head = place.batch * shape.heads + place.head;
    const int64_t last = place.first + kRows < shape.queries ? place.first + kRows : shape.queries;
    const int64_t end = KeysSeen(shape, last);
    const int64_t diagonal = place.first + shape.causal_offset;

    __syncthreads();
    CopyHeadRows<kRows>(x.q, place.batch, place.head, place.first, shape.queries, width, queries);
    CopyHeadRows<kRows>(x.d_o, place.batch, place.head, place.first, shape.queries, width, d_o);
    CopyHeadRows<kKeys>(x.k, place.batch, key_head, 0, end, width, keys[0]);
    CopyHeadRows<kKeys>(x.v, place.batch, key_head, 0, end, width, values[0]);
    WaitForCopies();
    __syncthreads();
    // A thread a row.
    for (int row = static_cast<int>(threadIdx.x); row < kRows;
         row += static_cast<int>(blockDim.x)) {
      const int64_t query = place.first + row;
      float delta = 0;
      if (query < shape.queries) {
        const T* o = HeadRow(x.o, place.batch, place.head, query);
        for (int unit = 0; unit * kUnit < width; ++unit) {
          const auto a = *reinterpret_cast<const Pack<T, kUnit>*>(o + unit * kUnit);
          const auto b = *reinterpret_cast<const Pack<T, kUnit>*>(d_o.Unit(row, unit));
#pragma unroll
          for (int i = 0; i < kUnit; ++i) delta += Widen(a.v[i]) * Widen(b.v[i]);
        }
        x.deltas[of_head * shape.queries + query] = delta;
      }
      shared_deltas[row] = delta;
    }
    __syncthreads();
    float lse[2 * kTiles];  // in powers of 2; of the lane's rows
    float delta[2 * kTiles];
#pragma unroll
    for (int half = 0; half < 2 * kTiles; ++half) {
      const int row = first_of_warp + ProductRow(lane, 2 * half);
      lse[half] = place.first + row < shape.queries
                      ? x.lse[of_head * shape.lse_rows + place.first + row] * kLog2E
                      : INFINITY;
      delta[half] = shared_deltas[row];
    }

    FragmentC sums[kTiles][kWidth / kMmaColumns] = {};
    int buffer = 0;
    for (int64_t first_key = 0; first_key < end; first_key += kKeys, buffer ^= 1) {
      if (first_key > 0) {
        WaitForCopies();
        __syncthreads();
      }
      if (first_key + kKeys < end) {
        CopyHeadRows<kKeys>(x.k, place.batch, key_head, first_key + kKeys, end, width,
                            keys[buffer ^ 1]);
        CopyHeadRows<kKeys>(x.v, place.batch, key_head, first_key + kKeys, end, width,
                            values[buffer ^ 1]);
      }
      FragmentC weights[kTiles][kKeys / kMmaColumns];
      FragmentC slopes[kTiles][kKeys / kMmaColumns];
      MultiplyRows(queries, first_of_warp, keys[buffer], lane, weights);
      MultiplyRows(d_o, first_of_warp, values[buffer], lane, slopes);
      const bool is_cut = first_key + kKeys > end ||
                          (shape.is_causal && first_key + kKeys - 1 > diagonal + first_of_warp);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kKeys / kMmaColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int half = 2 * m + i / 2;
            const float weight = Exp2(weights[m][n].v[i] * scale_log2 - lse[half]);
            float slope = weight * (slopes[m][n].v[i] - delta[half]);
            if (is_cut) {
              const int64_t key = first_key + ProductColumn(lane, n, i);
              const int row = first_of_warp + ProductRow(lane, 2 * half);
              if (key >= end || (shape.is_causal && key > row + diagonal)) slope = 0;
            }
            slopes[m][n].v[i] = slope;
          }
        }
      }
      AddProduct<T>(slopes, keys[buffer], lane, sums);
    }
    StoreRows<T>(sums, scale, x.dq, place.batch, place.head, place.first + first_of_warp,
                 shape.queries, width, lane);
  }
}

// dk and dv. Reads the deltas.
template <typename T, int kWidth>
__global__ void __launch_bounds__(AttentionCut::kThreads)
    KeyGradTensorKernel(AttentionShape shape, TensorAttentionGradOperands<T> x, int64_t num_blocks,
                        float scale) {
  constexpr int kQueries = kGradCut<kWidth>.other;
  constexpr int kTiles = kGradCut<kWidth>.tiles;
  constexpr int kRows = kGradRows<kWidth>;
  __shared__ float shared_lse[2][kQueries];  // in powers of 2
  __shared__ float shared_deltas[2][kQueries];
  static_assert(sizeof(shared_lse) + sizeof(shared_deltas) <= AttentionCut::kMaxStaticBytes);
  SharedRowsLayout<T, kWidth> layout;
  const SharedRows<T, kWidth> keys = layout.Take(kRows);
  const SharedRows<T, kWidth> values = layout.Take(kRows);
  const SharedRows<T, kWidth> queries[2] = {layout.Take(kQueries), layout.Take(kQueries)};
  const SharedRows<T, kWidth> d_o[2] = {layout.Take(kQueries), layout.Take(kQueries)};
  const int width = static_cast<int>(shape.width);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_of_warp = static_cast<int>(threadIdx.x) / kWarp * kTiles * kMmaRows;
  const float scale_log2 = scale * kLog2E;
  const int64_t heads_per_key = shape.heads / shape.key_heads;

  for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    const BlockPlace place =
        BlockPlaceOf(block, shape.batch, shape.key_heads, shape.keys, kRows, false);
    // The first query that sees the first key of the block.
    int64_t first_query = shape.is_causal ? place.first - shape.causal_offset : 0;
    if (first_query < 0) first_query = 0;
    const int64_t tiles_a_head =
        first_query < shape.queries ? (shape.queries - first_query + kQueries - 1) / kQueries : 0;
    const int64_t num_tiles = tiles_a_head * heads_per_key;

    // Asks for the rows of a tile of queries, and reads their numbers.
    const auto load = [&](int64_t tile, int buffer) {
      const int64_t head = place.head * heads_per_key + tile / tiles_a_head;
      const int64_t begin = first_query + tile % tiles_a_head * kQueries;
      CopyHeadRows<kQueries>(x.q, place.batch, head, begin, shape.queries, width, queries[buffer]);
      CopyHeadRows<kQueries>(x.d_o, place.batch, head, begin, shape.queries, width, d_o[buffer]);
      const int64_t of_head = place.batch * shape.heads + head;
      for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += static_cast<int>(blockDim.x)) {
        const bool is_there = begin + i < shape.queries;
        shared_lse[buffer][i] =
            is_there ? x.lse[of_head * shape.lse_rows + begin + i] * kLog2E : INFINITY;
        shared_deltas[buffer][i] = is_there ? x.deltas[of_head * shape.queries + begin + i] : 0.0f;
      }
    };

    __syncthreads();
    CopyHeadRows<kRows>(x.k, place.batch, place.head, place.first, shape.keys, width, keys);
    CopyHeadRows<kRows>(x.v, place.batch, place.head, place.first, shape.keys, width, values);
    if (num_tiles > 0) load(0, 0);
    FragmentC key_sums[kTiles][kWidth / kMmaColumns] = {};
    FragmentC value_sums[kTiles][kWidth / kMmaColumns] = {};
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int buffer = static_cast<int>(tile & 1);
      WaitForCopies();
      __syncthreads();  // all have read the other buffer, too
      if (tile + 1 < num_tiles) load(tile + 1, buffer ^ 1);
      FragmentC weights[kTiles][kQueries / kMmaColumns];
      FragmentC slopes[kTiles][kQueries / kMmaColumns];
      MultiplyRows(keys, first_of_warp, queries[buffer], lane, weights);
      MultiplyRows(values, first_of_warp, d_o[buffer], lane, slopes);
      // Key `place.first + i` is seen from query i + diagonal of the tile on.
      const int64_t begin = first_query + tile % tiles_a_head * kQueries;
      const int64_t diagonal = shape.is_causal ? place.first - shape.causal_offset - begin : -kRows;
      const int64_t end = shape.queries - begin;
      const bool is_cut = end < kQueries || first_of_warp + kTiles * kMmaRows - 1 + diagonal > 0;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kQueries / kMmaColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int query = ProductColumn(lane, n, i);
            const int row = first_of_warp + m * kMmaRows + ProductRow(lane, i);
            float weight = Exp2(weights[m][n].v[i] * scale_log2 - shared_lse[buffer][query]);
            float slope = weight * (slopes[m][n].v[i] - shared_deltas[buffer][query]);
            if (is_cut && (query >= end || row + diagonal > query)) weight = slope = 0;
            weights[m][n].v[i] = weight;
            slopes[m][n].v[i] = slope;
          }
        }
      }
      AddProduct<T>(weights, d_o[buffer], lane, value_sums);
      AddProduct<T>(slopes, queries[buffer], lane, key_sums);
    }
    WaitForCopies();  // where no query sees the keys
    StoreRows<T>(key_sums, scale, x.dk, place.batch, place.head, place.first + first_of_warp,
                 shape.keys, width, lane);
    StoreRows<T>(value_sums, 1, x.dv, place.batch, place.head, place.first + first_of_warp,
                 shape.keys, width, lane);
  }
}

// A block for some `rows` of each head, if there are any.
template <typename Kernel, typename T>
LaunchResult LaunchGradKernel(Kernel* kernel, StreamHandle stream, const AttentionShape& shape,
                              int64_t heads, int64_t rows,
                              const TensorAttentionGradOperands<T>& operands) {
  const AttentionCut cut = GradCut(shape.width);
  const int64_t blocks = NumBlocks(cut, heads, rows);
  if (blocks == 0) return 0;
  return Launch(kernel, TensorAttentionLaunch(cut, heads, rows, shape.width), stream, shape,
                operands, blocks, ScaleOf(shape));
}

}  // namespace

template <typename T>
LaunchResult PrepareTensorAttentionGrad() {
  for (const int width : {64, kMaxTensorHeadWidth}) {
    const LaunchResult result = WithPaddedWidth(width, [](auto padded) {
      constexpr int kWidth = decltype(padded)::value;
      constexpr size_t kBytes = GradCut(kWidth).shared_bytes(kWidth);
      const LaunchResult allowed = AllowSharedMemory(&QueryGradTensorKernel<T, kWidth>, kBytes);
      return allowed != 0 ? allowed : AllowSharedMemory(&KeyGradTensorKernel<T, kWidth>, kBytes);
    });
    if (result != 0) return result;
  }
  return 0;
}

template <typename T>
LaunchResult LaunchTensorAttentionGrad(StreamHandle stream, const AttentionShape& shape,
                                       const TensorAttentionGradOperands<T>& operands) {
  return WithPaddedWidth(shape.width, [&](auto padded) {
    constexpr int kWidth = decltype(padded)::value;
    const LaunchResult launched =
        LaunchGradKernel(&QueryGradTensorKernel<T, kWidth>, stream, shape,
                         shape.batch * shape.heads, shape.queries, operands);
    if (launched != 0) return launched;
    return LaunchGradKernel(&KeyGradTensorKernel<T, kWidth>, stream, shape,
                            shape.batch * shape.key_heads, shape.keys, operands);
  });
}

// ---- Instances.

template LaunchResult PrepareTensorAttentionGrad<BFloat16>();
template LaunchResult PrepareTensorAttentionGrad<Float16>();
template LaunchResult LaunchTensorAttentionGrad(StreamHandle, const AttentionShape&,
                                                const TensorAttentionGradOperands<BFloat16>&);
template LaunchResult LaunchTensorAttentionGrad(StreamHandle, const AttentionShape&,
                                                const TensorAttentionGradOperands<Float16>&);

}  // namespace penstock::kernels::cuda
