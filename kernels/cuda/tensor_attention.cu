#include <type_traits>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/mma.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/tensor_attention.h"

namespace penstock::kernels::cuda {

// The results are of the operands' type or floats.
struct AttentionResult {
  void* data;
  HeadStrides strides;
  bool is_float;
};

template <typename T>
struct TensorAttentionOperands {
  HeadTensor<const T> q, k, v;
  AttentionResult o;
  const void* so_far;  // as o
  float* lse;
  const float* lse_so_far;
};

template <typename T>
struct TensorAttentionGradOperands {
  HeadTensor<const T> q, k, v, o, d_o;
  AttentionResult dq, dk, dv;
  const float* lse;
  float* deltas;
};

namespace {

constexpr unsigned kAllOfWarp = 0xffffffffu;
constexpr int kMmaRows = 16;    // of a product, and its depth
constexpr int kMmaColumns = 8;  // of a product
constexpr int kUnit = 8;        // elements of 16 bytes

// Elements (row, column) and (row, column + 1).
template <typename T>
__device__ void StorePair(const AttentionResult& to, int64_t batch, int64_t head, int64_t row,
                          int column, float low, float high) {
  const int64_t at =
      batch * to.strides.batch + head * to.strides.head + row * to.strides.row + column;
  if (to.is_float) {
    *reinterpret_cast<Pack<float, 2>*>(static_cast<float*>(to.data) + at) = {{low, high}};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<T*>(to.data) + at) = PackPair<T>(low, high);
  }
}
template <typename T>
__device__ Pack<float, 2> LoadPair(const void* data, const AttentionResult& like, int64_t batch,
                                   int64_t head, int64_t row, int column) {
  const int64_t at =
      batch * like.strides.batch + head * like.strides.head + row * like.strides.row + column;
  if (like.is_float)
    return *reinterpret_cast<const Pack<float, 2>*>(static_cast<const float*>(data) + at);
  const Pack<T, 2> pair = *reinterpret_cast<const Pack<T, 2>*>(static_cast<const T*>(data) + at);
  return {{Widen(pair.v[0]), Widen(pair.v[1])}};
}

// Rows of kWidth elements in shared memory. The units of 16 bytes of row r lie where their number
// xor r % 8 says, so that the units of one number of eight rows lie in different banks.
template <typename T, int kWidth>
struct SharedRows {
  T* data;

  __device__ T* Unit(int row, int unit) const {
    return data + row * kWidth + ((unit ^ (row & 7)) * kUnit);
  }

  // Operand a of a product: rows [row, row + 16), columns [16 k, 16 k + 16).
  __device__ FragmentA LoadA(int row, int k, int lane) const {
    FragmentA a;
    LoadMatrices<false>(Unit(row + (lane & 15), 2 * k + (lane >> 4)), a.v);
    return a;
  }
  // Operands b for 16 columns of the result: rows [row, row + 16) are its columns, and columns
  // [16 k, 16 k + 16) are summed over.
  __device__ void LoadB(int row, int k, int lane, FragmentB (&b)[2]) const {
    uint32_t v[4];
    LoadMatrices<false>(Unit(row + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)), v);
    b[0] = {{v[0], v[1]}};
    b[1] = {{v[2], v[3]}};
  }
  // Likewise, but rows [row, row + 16) are summed over, and columns [16 n, 16 n + 16) are the
  // result's.
  __device__ void LoadTransposedB(int row, int n, int lane, FragmentB (&b)[2]) const {
    uint32_t v[4];
    LoadMatrices<true>(Unit(row + (lane & 15), 2 * n + (lane >> 4)), v);
    b[0] = {{v[0], v[1]}};
    b[1] = {{v[2], v[3]}};
  }
};

// Asks for rows [first, first + kRows) of a head; those from `limit` on, and columns beyond the
// width, are zeros. By all threads of the block; WaitForCopies and a barrier must follow.
template <int kRows, typename T, int kWidth>
__device__ void CopyHeadRows(const HeadTensor<const T>& from, int64_t batch, int64_t head,
                             int64_t first, int64_t limit, int width, SharedRows<T, kWidth> to) {
  constexpr int kUnits = kWidth / kUnit;
  const T* rows = HeadRow(from, batch, head, first);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kUnits;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / kUnits;
    const int unit = i % kUnits;
    T* place = to.Unit(row, unit);
    if (first + row < limit && unit * kUnit < width) {
      CopyAsync16(place, rows + row * from.strides.row + unit * kUnit);
    } else {
      *reinterpret_cast<Pack<T, kUnit>*>(place) = {};
    }
  }
}

// Two results of 8 columns each, side by side, as operand a of a product.
template <typename T>
__device__ FragmentA AsA(const FragmentC& left, const FragmentC& right) {
  return {{PackPair<T>(left.v[0], left.v[1]), PackPair<T>(left.v[2], left.v[3]),
           PackPair<T>(right.v[0], right.v[1]), PackPair<T>(right.v[2], right.v[3])}};
}

// Of the four lanes that share a row.
template <typename F>
__device__ float ReduceRow(float value, F f) {
  value = f(value, __shfl_xor_sync(kAllOfWarp, value, 1));
  return f(value, __shfl_xor_sync(kAllOfWarp, value, 2));
}

struct GreaterOp {  // the other one where one is NaN
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Blocks in the order of their work, the longest first: causal queries at the end see most keys,
// and causal keys at the beginning are seen by most queries.
struct BlockPlace {
  int64_t batch;
  int64_t head;
  int64_t first;  // row
};
__device__ BlockPlace BlockPlaceOf(int64_t block, int64_t batch, int64_t heads, int64_t rows,
                                   int block_rows, bool is_last_first) {
  const int64_t all_heads = batch * heads;
  const int64_t head = block % all_heads;
  int64_t row_block = block / all_heads;
  if (is_last_first) row_block = (rows + block_rows - 1) / block_rows - 1 - row_block;
  return {head / heads, head % heads, row_block * block_rows};
}

// How a pass is cut: rows of a warp are kTiles x 16; kOther rows of the other side at a time.
template <AttentionPass kPass, int kWidth>
struct Cut;
template <>
struct Cut<AttentionPass::kForward, 64> {
  static constexpr int kWarps = 4, kTiles = 2, kOther = 64;
};
template <>
struct Cut<AttentionPass::kForward, 128> {
  static constexpr int kWarps = 4, kTiles = 1, kOther = 64;
};
template <>
struct Cut<AttentionPass::kQueryGrad, 64> {
  static constexpr int kWarps = 4, kTiles = 2, kOther = 32;
};
template <>
struct Cut<AttentionPass::kQueryGrad, 128> {
  static constexpr int kWarps = 4, kTiles = 1, kOther = 32;
};
template <>
struct Cut<AttentionPass::kKeyGrad, 64> {
  static constexpr int kWarps = 4, kTiles = 2, kOther = 32;
};
template <>
struct Cut<AttentionPass::kKeyGrad, 128> {
  static constexpr int kWarps = 4, kTiles = 1, kOther = 32;
};
template <AttentionPass kPass, int kWidth>
constexpr int kBlockRowsOf = Cut<kPass, kWidth>::kWarps* Cut<kPass, kWidth>::kTiles* kMmaRows;
template <AttentionPass kPass, int kWidth>
constexpr int kThreadsOf = Cut<kPass, kWidth>::kWarps* kWarp;

// Shared memory: the rows of the block (of two operands in gradients), and two buffers for the rows
// of the other side's two operands.
template <AttentionPass kPass, int kWidth>
constexpr size_t SharedBytesOf() {
  constexpr int kOwn = kPass == AttentionPass::kForward ? 1 : 2;
  return sizeof(uint16_t) * kWidth *
         (kOwn * kBlockRowsOf<kPass, kWidth> + 4 * Cut<kPass, kWidth>::kOther);
}

// a b', of rows [row, row + 16 kTiles) of a and all of the product's columns as rows of b.
template <typename T, int kWidth, int kTiles, int kColumns>
__device__ void MultiplyRows(const SharedRows<T, kWidth>& a, int row,
                             const SharedRows<T, kWidth>& b, int lane,
                             FragmentC (&product)[kTiles][kColumns]) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) product[m][n] = {};
  }
#pragma unroll
  for (int k = 0; k < kWidth / kMmaRows; ++k) {
    FragmentA left[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) left[m] = a.LoadA(row + m * kMmaRows, k, lane);
#pragma unroll
    for (int n = 0; n < kColumns / 2; ++n) {
      FragmentB right[2];
      b.LoadB(n * kMmaRows, k, lane, right);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        MultiplyAdd<T>(left[m], right[0], &product[m][2 * n]);
        MultiplyAdd<T>(left[m], right[1], &product[m][2 * n + 1]);
      }
    }
  }
}

// sums += weights b, of weights [16 kTiles, rows of b].
template <typename T, int kWidth, int kTiles, int kColumns, int kSums>
__device__ void AddProduct(const FragmentC (&weights)[kTiles][kColumns],
                           const SharedRows<T, kWidth>& b, int lane,
                           FragmentC (&sums)[kTiles][kSums]) {
#pragma unroll
  for (int k = 0; k < kColumns / 2; ++k) {
    FragmentA left[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) left[m] = AsA<T>(weights[m][2 * k], weights[m][2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kWidth / kMmaRows; ++n) {
      FragmentB right[2];
      b.LoadTransposedB(k * kMmaRows, n, lane, right);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        MultiplyAdd<T>(left[m], right[0], &sums[m][2 * n]);
        MultiplyAdd<T>(left[m], right[1], &sums[m][2 * n + 1]);
      }
    }
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreadsOf<AttentionPass::kForward, kWidth>)
    ForwardKernel(AttentionShape whole, TensorAttentionOperands<T> x, int64_t num_blocks,
                  float scale) {
  using Sizes = Cut<AttentionPass::kForward, kWidth>;
  constexpr int kTiles = Sizes::kTiles;
  constexpr int kKeys = Sizes::kOther;
  constexpr int kRows = kBlockRowsOf<AttentionPass::kForward, kWidth>;
  T* shared = SharedMemory<T>();
  const SharedRows<T, kWidth> queries = {shared};
  shared += kRows * kWidth;
  const SharedRows<T, kWidth> keys[2] = {{shared}, {shared + kKeys * kWidth}};
  shared += 2 * kKeys * kWidth;
  const SharedRows<T, kWidth> values[2] = {{shared}, {shared + kKeys * kWidth}};
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
    float max[kTiles][2];    // of scores before they are scaled; of rows lane / 4 and that + 8
    float total[kTiles][2];  // of this lane's columns
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max[m][h] = -INFINITY;
        total[m][h] = 0;
        const int64_t query = place.first + first_of_warp + m * kMmaRows + lane / 4 + h * 8;
        if (x.so_far == nullptr || query >= shape.queries) continue;
        // What the keys before have given is one more key of weight e^lse.
        max[m][h] = x.lse_so_far[lse_begin + query] / scale;
        if (max[m][h] == -INFINITY) continue;
        if (lane % 4 == 0) total[m][h] = 1;
#pragma unroll
        for (int n = 0; n < kWidth / kMmaColumns; ++n) {
          const int column = n * kMmaColumns + lane % 4 * 2;
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
              const int64_t key = first_key + n * kMmaColumns + lane % 4 * 2 + i % 2;
              const int row = first_of_warp + m * kMmaRows + lane / 4 + i / 2 * 8;
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
        const int64_t query = place.first + first_of_warp + m * kMmaRows + lane / 4 + h * 8;
        const float sum = ReduceRow(total[m][h], SumOp());
        if (query >= whole.queries) continue;
        const bool is_empty = max[m][h] == -INFINITY || query >= shape.queries;
        const float factor = is_empty ? 0.0f : 1 / sum;
#pragma unroll
        for (int n = 0; n < kWidth / kMmaColumns; ++n) {
          const int column = n * kMmaColumns + lane % 4 * 2;
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

// Rows [first, first + 16 kTiles) of the result, times a factor.
template <typename T, int kTiles, int kSums>
__device__ void StoreRows(const FragmentC (&sums)[kTiles][kSums], float factor,
                          const AttentionResult& to, int64_t batch, int64_t head, int64_t first,
                          int64_t limit, int width, int lane) {
#pragma unroll
  for (int half = 0; half < 2 * kTiles; ++half) {
    const int64_t row = first + lane / 4 + half * 8;
    if (row >= limit) continue;
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      const int column = n * kMmaColumns + lane % 4 * 2;
      if (column >= width) continue;
      const FragmentC& sum = sums[half / 2][n];
      StorePair<T>(to, batch, head, row, column, sum.v[half % 2 * 2] * factor,
                   sum.v[half % 2 * 2 + 1] * factor);
    }
  }
}

// dq, and the deltas: the products of o and do.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreadsOf<AttentionPass::kQueryGrad, kWidth>)
    QueryGradTensorKernel(AttentionShape shape, TensorAttentionGradOperands<T> x,
                          int64_t num_blocks, float scale) {
  using Sizes = Cut<AttentionPass::kQueryGrad, kWidth>;
  constexpr int kKeys = Sizes::kOther;
  constexpr int kTiles = Sizes::kTiles;
  constexpr int kRows = kBlockRowsOf<AttentionPass::kQueryGrad, kWidth>;
  __shared__ float shared_deltas[kRows];
  T* shared = SharedMemory<T>();
  const SharedRows<T, kWidth> queries = {shared};
  shared += kRows * kWidth;
  const SharedRows<T, kWidth> d_o = {shared};
  shared += kRows * kWidth;
  const SharedRows<T, kWidth> keys[2] = {{shared}, {shared + kKeys * kWidth}};
  shared += 2 * kKeys * kWidth;
  const SharedRows<T, kWidth> values[2] = {{shared}, {shared + kKeys * kWidth}};
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
    float lse[2 * kTiles];  // in powers of 2; of rows lane / 4, that + 8, ...
    float delta[2 * kTiles];
#pragma unroll
    for (int half = 0; half < 2 * kTiles; ++half) {
      const int row = first_of_warp + lane / 4 + half * 8;
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
              const int64_t key = first_key + n * kMmaColumns + lane % 4 * 2 + i % 2;
              const int row = first_of_warp + lane / 4 + half * 8;
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
__global__ void __launch_bounds__(kThreadsOf<AttentionPass::kKeyGrad, kWidth>)
    KeyGradTensorKernel(AttentionShape shape, TensorAttentionGradOperands<T> x, int64_t num_blocks,
                        float scale) {
  using Sizes = Cut<AttentionPass::kKeyGrad, kWidth>;
  constexpr int kQueries = Sizes::kOther;
  constexpr int kTiles = Sizes::kTiles;
  constexpr int kRows = kBlockRowsOf<AttentionPass::kKeyGrad, kWidth>;
  __shared__ float shared_lse[2][kQueries];  // in powers of 2
  __shared__ float shared_deltas[2][kQueries];
  T* shared = SharedMemory<T>();
  const SharedRows<T, kWidth> keys = {shared};
  shared += kRows * kWidth;
  const SharedRows<T, kWidth> values = {shared};
  shared += kRows * kWidth;
  const SharedRows<T, kWidth> queries[2] = {{shared}, {shared + kQueries * kWidth}};
  shared += 2 * kQueries * kWidth;
  const SharedRows<T, kWidth> d_o[2] = {{shared}, {shared + kQueries * kWidth}};
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
            const int query = n * kMmaColumns + lane % 4 * 2 + i % 2;
            const int row = first_of_warp + m * kMmaRows + lane / 4 + i / 2 * 8;
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

// ---- Launching. f(std::integral_constant of the width that a head is padded to).

template <typename F>
auto WithPaddedWidth(int64_t width, const F& f) {
  if (width <= 64) return f(std::integral_constant<int, 64>());
  return f(std::integral_constant<int, 128>());
}

template <typename F>
auto WithPass(AttentionPass pass, const F& f) {
  switch (pass) {
    case AttentionPass::kForward:
      return f(std::integral_constant<AttentionPass, AttentionPass::kForward>());
    case AttentionPass::kQueryGrad:
      return f(std::integral_constant<AttentionPass, AttentionPass::kQueryGrad>());
    default:
      return f(std::integral_constant<AttentionPass, AttentionPass::kKeyGrad>());
  }
}

bool AreMultiples(const HeadStrides& strides, int64_t of) {
  return strides.batch % of == 0 && strides.head % of == 0 && strides.row % of == 0;
}
template <typename T>
bool IsInUnits(const HeadTensor<const T>& x) {
  return IsAligned<kUnit>(x.data) && AreMultiples(x.strides, kUnit);
}
template <typename R>
bool IsInPairs(const HeadTensor<R>& x) {
  return IsAligned<2>(x.data) && AreMultiples(x.strides, 2);
}
bool IsWidthForTensorCores(const AttentionShape& shape) {
  return shape.width % kUnit == 0 && shape.width <= kMaxTensorHeadWidth;
}

template <typename R>
AttentionResult ResultOf(const HeadTensor<R>& x) {
  return {x.data, x.strides, std::is_same_v<R, float>};
}

}  // namespace

template <typename T, typename R>
bool IsForTensorCores(const AttentionShape& shape, const AttentionOperands<T, R>& x) {
  return IsWidthForTensorCores(shape) && IsInUnits(x.q) && IsInUnits(x.k) && IsInUnits(x.v) &&
         IsInPairs(x.o) && IsAligned<2>(x.so_far);
}
template <typename T, typename R>
bool IsForTensorCores(const AttentionShape& shape, const AttentionGradOperands<T, R>& x) {
  return IsWidthForTensorCores(shape) && IsInUnits(x.q) && IsInUnits(x.k) && IsInUnits(x.v) &&
         IsInUnits(x.o) && IsInUnits(x.d_o) && IsInPairs(x.dq) && IsInPairs(x.dk) &&
         IsInPairs(x.dv);
}

template <typename T>
LaunchResult PrepareTensorAttention() {
  for (const int64_t width : {64, 128}) {
    const LaunchResult result = WithPaddedWidth(width, [](auto padded) {
      constexpr int kWidth = decltype(padded)::value;
      LaunchResult allowed = AllowSharedMemory(&ForwardKernel<T, kWidth>,
                                               SharedBytesOf<AttentionPass::kForward, kWidth>());
      if (allowed == 0)
        allowed = AllowSharedMemory(&QueryGradTensorKernel<T, kWidth>,
                                    SharedBytesOf<AttentionPass::kQueryGrad, kWidth>());
      if (allowed == 0)
        allowed = AllowSharedMemory(&KeyGradTensorKernel<T, kWidth>,
                                    SharedBytesOf<AttentionPass::kKeyGrad, kWidth>());
      return allowed;
    });
    if (result != 0) return result;
  }
  return 0;
}

int TensorAttentionRows(AttentionPass pass, int64_t width) {
  return WithPass(pass, [&](auto of_pass) {
    return WithPaddedWidth(width, [](auto padded) {
      return kBlockRowsOf<decltype(of_pass)::value, decltype(padded)::value>;
    });
  });
}

LaunchShape TensorAttentionLaunch(AttentionPass pass, int64_t batch, int64_t heads, int64_t rows,
                                  int64_t width) {
  const int64_t blocks = batch * heads * CeilDiv(rows, TensorAttentionRows(pass, width));
  LaunchShape shape = {.grid_x = static_cast<unsigned>(blocks < 1            ? 1
                                                       : blocks < 0x7fffffff ? blocks
                                                                             : 0x7fffffff)};
  WithPass(pass, [&](auto of_pass) {
    WithPaddedWidth(width, [&](auto padded) {
      constexpr AttentionPass kPass = decltype(of_pass)::value;
      constexpr int kWidth = decltype(padded)::value;
      shape.threads_x = kThreadsOf<kPass, kWidth>;
      shape.shared_bytes = SharedBytesOf<kPass, kWidth>();
    });
  });
  return shape;
}

template <typename T, typename R>
LaunchResult LaunchTensorAttention(StreamHandle stream, const AttentionShape& shape,
                                   const AttentionOperands<T, R>& operands) {
  const int64_t rows = TensorAttentionRows(AttentionPass::kForward, shape.width);
  const int64_t blocks = shape.batch * shape.heads * CeilDiv(shape.queries, rows);
  if (blocks == 0) return 0;
  const TensorAttentionOperands<T> x = {operands.q,           operands.k,      operands.v,
                                        ResultOf(operands.o), operands.so_far, operands.lse,
                                        operands.lse_so_far};
  return WithPaddedWidth(shape.width, [&](auto padded) {
    return Launch(&ForwardKernel<T, decltype(padded)::value>,
                  TensorAttentionLaunch(AttentionPass::kForward, shape.batch, shape.heads,
                                        shape.queries, shape.width),
                  stream, shape, x, blocks, ScaleOf(shape));
  });
}

template <typename T, typename R>
LaunchResult LaunchTensorAttentionGrad(StreamHandle stream, const AttentionShape& shape,
                                       const AttentionGradOperands<T, R>& operands) {
  const TensorAttentionGradOperands<T> x = {operands.q,
                                            operands.k,
                                            operands.v,
                                            operands.o,
                                            operands.d_o,
                                            ResultOf(operands.dq),
                                            ResultOf(operands.dk),
                                            ResultOf(operands.dv),
                                            operands.lse,
                                            operands.deltas};
  return WithPaddedWidth(shape.width, [&](auto padded) -> LaunchResult {
    constexpr int kWidth = decltype(padded)::value;
    const int64_t query_blocks =
        shape.batch * shape.heads *
        CeilDiv(shape.queries, TensorAttentionRows(AttentionPass::kQueryGrad, kWidth));
    if (query_blocks > 0) {
      const LaunchResult launched =
          Launch(&QueryGradTensorKernel<T, kWidth>,
                 TensorAttentionLaunch(AttentionPass::kQueryGrad, shape.batch, shape.heads,
                                       shape.queries, shape.width),
                 stream, shape, x, query_blocks, ScaleOf(shape));
      if (launched != 0) return launched;
    }
    const int64_t key_blocks =
        shape.batch * shape.key_heads *
        CeilDiv(shape.keys, TensorAttentionRows(AttentionPass::kKeyGrad, kWidth));
    if (key_blocks == 0) return 0;
    return Launch(&KeyGradTensorKernel<T, kWidth>,
                  TensorAttentionLaunch(AttentionPass::kKeyGrad, shape.batch, shape.key_heads,
                                        shape.keys, shape.width),
                  stream, shape, x, key_blocks, ScaleOf(shape));
  });
}

// ---- Instances.

template bool IsForTensorCores(const AttentionShape&, const AttentionOperands<BFloat16, BFloat16>&);
template bool IsForTensorCores(const AttentionShape&,
                               const AttentionGradOperands<BFloat16, BFloat16>&);
template LaunchResult LaunchTensorAttention(StreamHandle, const AttentionShape&,
                                            const AttentionOperands<BFloat16, BFloat16>&);
template LaunchResult LaunchTensorAttentionGrad(StreamHandle, const AttentionShape&,
                                                const AttentionGradOperands<BFloat16, BFloat16>&);

template bool IsForTensorCores(const AttentionShape&, const AttentionOperands<BFloat16, float>&);
template bool IsForTensorCores(const AttentionShape&,
                               const AttentionGradOperands<BFloat16, float>&);
template LaunchResult LaunchTensorAttention(StreamHandle, const AttentionShape&,
                                            const AttentionOperands<BFloat16, float>&);
template LaunchResult LaunchTensorAttentionGrad(StreamHandle, const AttentionShape&,
                                                const AttentionGradOperands<BFloat16, float>&);

template bool IsForTensorCores(const AttentionShape&, const AttentionOperands<Float16, Float16>&);
template bool IsForTensorCores(const AttentionShape&,
                               const AttentionGradOperands<Float16, Float16>&);
template LaunchResult LaunchTensorAttention(StreamHandle, const AttentionShape&,
                                            const AttentionOperands<Float16, Float16>&);
template LaunchResult LaunchTensorAttentionGrad(StreamHandle, const AttentionShape&,
                                                const AttentionGradOperands<Float16, Float16>&);

template bool IsForTensorCores(const AttentionShape&, const AttentionOperands<Float16, float>&);
template bool IsForTensorCores(const AttentionShape&, const AttentionGradOperands<Float16, float>&);
template LaunchResult LaunchTensorAttention(StreamHandle, const AttentionShape&,
                                            const AttentionOperands<Float16, float>&);
template LaunchResult LaunchTensorAttentionGrad(StreamHandle, const AttentionShape&,
                                                const AttentionGradOperands<Float16, float>&);

template LaunchResult PrepareTensorAttention<BFloat16>();
template LaunchResult PrepareTensorAttention<Float16>();

}  // namespace penstock::kernels::cuda
