// What the kernels of attention on tensor cores share: rows in shared memory, their products, and
// how blocks go over heads. Device code.
//
// Thread rule: functions of whole warps, or of whole blocks where they say so.

#ifndef PENSTOCK_KERNELS_CUDA_TENSOR_ATTENTION_DEVICE_H_
#define PENSTOCK_KERNELS_CUDA_TENSOR_ATTENTION_DEVICE_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/mma.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/tensor_attention.h"

namespace penstock::kernels::cuda {

inline constexpr unsigned kAllOfWarp = 0xffffffffu;
inline constexpr int kMmaRows = 16;    // of a product, and its depth
inline constexpr int kMmaColumns = 8;  // of a product
inline constexpr int kUnit = 8;        // elements of 16 bytes

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

// Hands out the block's shared memory, from its beginning on.
template <typename T, int kWidth>
struct SharedRowsLayout {
  T* next = SharedMemory<T>();

  __device__ SharedRows<T, kWidth> Take(int num_rows) {
    const SharedRows<T, kWidth> rows = {next};
    next += num_rows * kWidth;
    return rows;
  }
};

// Where a lane's element `i` of a product is: in the product's rows, and in the columns of all
// products beside each other, of which it is number `n`.
__device__ inline int ProductRow(int lane, int i) { return lane / 4 + i / 2 * 8; }
__device__ inline int ProductColumn(int lane, int n, int i) {
  return n * kMmaColumns + lane % 4 * 2 + i % 2;
}

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
__device__ inline BlockPlace BlockPlaceOf(int64_t block, int64_t batch, int64_t heads, int64_t rows,
                                          int block_rows, bool is_last_first) {
  const int64_t all_heads = batch * heads;
  const int64_t head = block % all_heads;
  int64_t row_block = block / all_heads;
  if (is_last_first) row_block = (rows + block_rows - 1) / block_rows - 1 - row_block;
  return {head / heads, head % heads, row_block * block_rows};
}

// The cuts as device code may read them.
template <int kWidth>
inline constexpr AttentionCut kForwardCut = ForwardCut(kWidth);
template <int kWidth>
inline constexpr int kForwardRows = kForwardCut<kWidth>.rows();
template <int kWidth>
inline constexpr AttentionCut kGradCut = GradCut(kWidth);
template <int kWidth>
inline constexpr int kGradRows = kGradCut<kWidth>.rows();

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

// ---- Launching. f(std::integral_constant of the width that a head is padded to).

template <typename F>
LaunchResult WithPaddedWidth(int64_t width, const F& f) {
  if (PaddedHeadWidth(width) == 64) return f(std::integral_constant<int, 64>());
  return f(std::integral_constant<int, kMaxTensorHeadWidth>());
}

inline int64_t NumBlocks(const AttentionCut& cut, int64_t heads, int64_t rows) {
  return heads * CeilDiv(rows, cut.rows());
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_TENSOR_ATTENTION_DEVICE_H_
