#include "kernels/cuda/tensor_attention.h"
#include "kernels/cuda/tensor_attention_device.h"

namespace penstock::kernels::cuda {
namespace {

template <typename T, int kWidth>
__global__ void __launch_bounds__(AttentionCut::kThreads)
    ForwardTensorKernel(AttentionShape whole, TensorAttentionOperands<T> x, int64_t num_blocks,
                        float scale) {
  constexpr int kTiles = kForwardCut<kWidth>.tiles;
  constexpr int kKeys = kForwardCut<kWidth>.other;
  constexpr int kRows = kForwardRows<kWidth>;
  SharedRowsLayout<T, kWidth> layout;
  const SharedRows<T, kWidth> queries = layout.Take(kRows);
  const SharedRows<T, kWidth> keys[2] = {layout.Take(kKeys), layout.Take(kKeys)};
  const SharedRows<T, kWidth> values[2] = {layout.Take(kKeys), layout.Take(kKeys)};
  const int width = static_cast<int>(whole.width);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_of_warp = static_cast<int>(threadIdx.x) / kWarp * kTiles * kMmaRows;
  const float scale_log2 = scale * kLog2E;

  for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    const BlockPlace place =
        BlockPlaceOf(block, whole.batch, whole.heads, whole.queries, kRows, whole.is_causal);
    const AttentionShape shape = ShapeOfBatch(whole, place.batch);
    const int64_t key_head = place.head / (shape.heads / shape.key_heads);
    const int64_t last = place.first + kRows < shape.queries ? place.first + kRows : shape.queries;
    const int64_t end = KeysSeen(shape, last);
    // Query `place.first + i` sees the keys up to i + diagonal.
    const int64_t diagonal = place.first + shape.causal_offset;
    const int64_t lse_begin = (place.batch * shape.heads + place.head) * shape.lse_rows;

    __syncthreads();
    CopyHeadRows<kRows>(x.q, place.batch, place.head, place.first, shape.queries, width, queries);
    CopyHeadRows<kKeys>(x.k, place.batch, key_head, 0, end, width, keys[0]);
    CopyHeadRows<kKeys>(x.v, place.batch, key_head, 0, end, width, values[0]);

    FragmentC sums[kTiles][kWidth / kMmaColumns] = {};
    float max[kTiles][2];    // of scores before they are scaled; of the lane's two rows
    float total[kTiles][2];  // of this lane's columns
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max[m][h] = -INFINITY;
        total[m][h] = 0;
        const int64_t query = place.first + first_of_warp + m * kMmaRows + ProductRow(lane, 2 * h);
        if (x.so_far == nullptr || query >= shape.queries) continue;
        // What the keys before have given is one more key of weight e^lse.
        max[m][h] = x.lse_so_far[lse_begin + query] / scale;
        if (max[m][h] == -INFINITY) continue;
        if (lane % 4 == 0) total[m][h] = 1;
#pragma unroll
        for (int n = 0; n < kWidth / kMmaColumns; ++n) {
          const int column = ProductColumn(lane, n, 0);
          if (column >= width) continue;
          const Pack<float, 2> pair =
              LoadPair<T>(x.so_far, x.o, place.batch, place.head, query, column);
          sums[m][n].v[2 * h] = pair.v[0];
          sums[m][n].v[2 * h + 1] = pair.v[1];
        }
      }
    }

    int buffer = 0;
    for (int64_t first_key = 0; first_key < end; first_key += kKeys, buffer ^= 1) {
      WaitForCopies();
      __syncthreads();  // all have read the other buffer, too
      if (first_key + kKeys < end) {
        CopyHeadRows<kKeys>(x.k, place.batch, key_head, first_key + kKeys, end, width,
                            keys[buffer ^ 1]);
        CopyHeadRows<kKeys>(x.v, place.batch, key_head, first_key + kKeys, end, width,
                            values[buffer ^ 1]);
      }
      FragmentC scores[kTiles][kKeys / kMmaColumns];
      MultiplyRows(queries, first_of_warp, keys[buffer], lane, scores);
      const bool is_cut = first_key + kKeys > end ||
                          (shape.is_causal && first_key + kKeys - 1 > diagonal + first_of_warp);
      if (is_cut) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int n = 0; n < kKeys / kMmaColumns; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int64_t key = first_key + ProductColumn(lane, n, i);
              const int row = first_of_warp + m * kMmaRows + ProductRow(lane, i);
              if (key >= end || (shape.is_causal && key > row + diagonal)) {
                scores[m][n].v[i] = -INFINITY;
              }
            }
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float new_max = max[m][h];
#pragma unroll
          for (int n = 0; n < kKeys / kMmaColumns; ++n) {
            new_max = fmaxf(new_max, fmaxf(scores[m][n].v[2 * h], scores[m][n].v[2 * h + 1]));
          }
          new_max = ReduceRow(new_max, GreaterOp());
          // A row that has seen no key stays 0.
          const float zero = new_max == -INFINITY ? 0.0f : new_max * scale_log2;
          const float factor = Exp2(max[m][h] * scale_log2 - zero);
          max[m][h] = new_max;
          float sum = 0;
#pragma unroll
          for (int n = 0; n < kKeys / kMmaColumns; ++n) {
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; ++i) {
              scores[m][n].v[i] = Exp2(scores[m][n].v[i] * scale_log2 - zero);
              sum += scores[m][n].v[i];
            }
          }
          total[m][h] = total[m][h] * factor + sum;
#pragma unroll
          for (int n = 0; n < kWidth / kMmaColumns; ++n) {
            sums[m][n].v[2 * h] *= factor;
            sums[m][n].v[2 * h + 1] *= factor;
          }
        }
      }
      AddProduct<T>(scores, values[buffer], lane, sums);
    }
    WaitForCopies();  // where there was no key, of the queries

#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t query = place.first + first_of_warp + m * kMmaRows + ProductRow(lane, 2 * h);
        const float sum = ReduceRow(total[m][h], SumOp());
        if (query >= whole.queries) continue;
        const bool is_empty = max[m][h] == -INFINITY || query >= shape.queries;
        const float factor = is_empty ? 0.0f : 1 / sum;
#pragma unroll
        for (int n = 0; n < kWidth / kMmaColumns; ++n) {
          const int column = ProductColumn(lane, n, 0);
          if (column >= width) continue;
          const float low = is_empty ? 0.0f : sums[m][n].v[2 * h] * factor;
          const float high = is_empty ? 0.0f : sums[m][n].v[2 * h + 1] * factor;
          StorePair<T>(x.o, place.batch, place.head, query, column, low, high);
        }
        if (lane % 4 == 0 && x.lse != nullptr) {
          x.lse[lse_begin + query] = is_empty ? -INFINITY : max[m][h] * scale + logf(sum);
        }
      }
    }
  }
}

bool AreMultiples(const HeadStrides& strides, int64_t of) {
  return strides.batch % of == 0 && strides.head % of == 0 && strides.row % of == 0;
}
template <typename T>
bool IsInUnits(const HeadTensor<const T>& x) {
  return IsAligned<kUnit>(x.data) && AreMultiples(x.strides, kUnit);
}
template <typename T>
bool AreInUnits(const AttentionShape& shape, const HeadTensor<const T>& q,
                const HeadTensor<const T>& k, const HeadTensor<const T>& v) {
  return shape.width % kUnit == 0 && shape.width <= kMaxTensorHeadWidth && IsInUnits(q) &&
         IsInUnits(k) && IsInUnits(v);
}
template <typename T>
bool IsInPairs(const void* data, bool is_float) {
  return is_float ? IsAligned<2>(static_cast<const float*>(data))
                  : IsAligned<2>(static_cast<const T*>(data));
}
template <typename T>
bool IsInPairs(const AttentionResult& x) {
  return IsInPairs<T>(x.data, x.is_float) && AreMultiples(x.strides, 2);
}

}  // namespace

template <typename T>
bool IsForTensorCores(const AttentionShape& shape, const TensorAttentionOperands<T>& x) {
  return AreInUnits(shape, x.q, x.k, x.v) && IsInPairs<T>(x.o) &&
         IsInPairs<T>(x.so_far, x.o.is_float);
}
template <typename T>
bool IsForTensorCores(const AttentionShape& shape, const TensorAttentionGradOperands<T>& x) {
  return AreInUnits(shape, x.q, x.k, x.v) && IsInUnits(x.o) && IsInUnits(x.d_o) &&
         IsInPairs<T>(x.dq) && IsInPairs<T>(x.dk) && IsInPairs<T>(x.dv);
}

LaunchShape TensorAttentionLaunch(const AttentionCut& cut, int64_t heads, int64_t rows,
                                  int64_t width) {
  constexpr int64_t kMaxGridX = 0x7fffffff;
  const int64_t blocks = NumBlocks(cut, heads, rows);
  return {.grid_x = static_cast<unsigned>(blocks < 1           ? 1
                                          : blocks < kMaxGridX ? blocks
                                                               : kMaxGridX),
          .threads_x = AttentionCut::kThreads,
          .shared_bytes = cut.shared_bytes(PaddedHeadWidth(width))};
}

template <typename T>
LaunchResult PrepareTensorAttention() {
  for (const int width : {64, kMaxTensorHeadWidth}) {
    const LaunchResult result = WithPaddedWidth(width, [](auto padded) {
      constexpr int kWidth = decltype(padded)::value;
      return AllowSharedMemory(&ForwardTensorKernel<T, kWidth>,
                               ForwardCut(kWidth).shared_bytes(kWidth));
    });
    if (result != 0) return result;
  }
  return 0;
}

template <typename T>
LaunchResult LaunchTensorAttention(StreamHandle stream, const AttentionShape& shape,
                                   const TensorAttentionOperands<T>& operands) {
  const AttentionCut cut = ForwardCut(shape.width);
  const int64_t heads = shape.batch * shape.heads;
  const int64_t blocks = NumBlocks(cut, heads, shape.queries);
  if (blocks == 0) return 0;
  return WithPaddedWidth(shape.width, [&](auto padded) {
    return Launch(&ForwardTensorKernel<T, decltype(padded)::value>,
                  TensorAttentionLaunch(cut, heads, shape.queries, shape.width), stream, shape,
                  operands, blocks, ScaleOf(shape));
  });
}

// ---- Instances.

template bool IsForTensorCores(const AttentionShape&, const TensorAttentionOperands<BFloat16>&);
template bool IsForTensorCores(const AttentionShape&, const TensorAttentionOperands<Float16>&);
template bool IsForTensorCores(const AttentionShape&, const TensorAttentionGradOperands<BFloat16>&);
template bool IsForTensorCores(const AttentionShape&, const TensorAttentionGradOperands<Float16>&);
template LaunchResult PrepareTensorAttention<BFloat16>();
template LaunchResult PrepareTensorAttention<Float16>();
template LaunchResult LaunchTensorAttention(StreamHandle, const AttentionShape&,
                                            const TensorAttentionOperands<BFloat16>&);
template LaunchResult LaunchTensorAttention(StreamHandle, const AttentionShape&,
                                            const TensorAttentionOperands<Float16>&);

}  // namespace penstock::kernels::cuda
