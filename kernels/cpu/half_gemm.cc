#include "kernels/cpu/half_gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/dot_gemm.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {
namespace {

// What is converted at a time: a block of a, a block of b and a block of results.
constexpr int64_t kConvertedRows = 128;
constexpr int64_t kConvertedColumns = 512;
constexpr int64_t kConvertedDepth = 512;

// Multiplications from which oneDNN is faster than DotGemm: on Zen 4, 2.6 reached 174 to 196
// GFLOP/s at 64 x 64 x 64, DotGemm 151 to 192; at sizes of a GPT of width 768 they reached 190 to
// 228 and 181 to 219.
constexpr int64_t kMinOneDnnWork = int64_t{1} << 17;

size_t Align(size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

struct ConvertedSizes {
  ConvertedSizes(int64_t m, int64_t n, int64_t k)
      : rows(std::min(m, kConvertedRows)),
        columns(std::min(n, kConvertedColumns)),
        depth(std::min(k, kConvertedDepth)) {}
  size_t a_bytes() const { return Align(rows * depth * sizeof(float)); }
  size_t b_bytes() const { return Align(depth * columns * sizeof(float)); }
  size_t c_bytes() const { return Align(rows * columns * sizeof(float)); }

  int64_t rows;
  int64_t columns;
  int64_t depth;
};

// from[rows, columns] as contiguous f32, transposed where its columns are the contiguous ones: then
// to[columns, rows]. Returns the matrix that `to` holds.
template <typename T>
StridedMatrix<const float> Convert(int64_t rows, int64_t columns, StridedMatrix<const T> from,
                                   float* to) {
  const bool is_transposed = from.column_stride != 1 && from.row_stride == 1;
  if (is_transposed) {
    std::swap(rows, columns);
    std::swap(from.row_stride, from.column_stride);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = from.data + i * from.row_stride;
    float* out = to + i * columns;
    if (from.column_stride == 1) {
      Map(
          columns, [](auto v) { return v; }, out, row);
    } else {
      for (int64_t j = 0; j < columns; ++j) out[j] = ToFloat(row[j * from.column_stride]);
    }
  }
  if (is_transposed) return {to, 1, columns};
  return {to, columns, 1};
}

// c = (c +) sums, row by row.
template <typename C>
void StoreBlock(int64_t rows, int64_t columns, const float* sums, bool adds, StridedMatrix<C> c) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = sums + i * columns;
    C* to = c.data + i * c.row_stride;
    if (c.column_stride == 1) {
      if (adds) {
        Map(
            columns, [](auto x, auto y) { return x + y; }, to, from, to);
      } else {
        Map(
            columns, [](auto x) { return x; }, to, from);
      }
      continue;
    }
    for (int64_t j = 0; j < columns; ++j) {
      C& element = to[j * c.column_stride];
      float sum = from[j];
      if constexpr (kIsHalf<C>) {
        if (adds) sum += ToFloat(element);
        element = FromFloat<C>(sum);
      } else {
        element = adds ? element + sum : sum;
      }
    }
  }
}

}  // namespace

Bf16Product ChooseBf16Product(Bf16Unit unit, bool has_dot_product, int64_t m, int64_t n,
                              int64_t k) {
  if (unit != Bf16Unit::kNone && m * n * k >= kMinOneDnnWork) return Bf16Product::kOneDnn;
  return has_dot_product ? Bf16Product::kDot : Bf16Product::kConverted;
}

template <typename T, typename C>
size_t ConvertedGemmWorkspaceBytes(int64_t m, int64_t n, int64_t k) {
  const ConvertedSizes sizes(m, n, k);
  return sizes.a_bytes() + sizes.b_bytes() + sizes.c_bytes() +
         GemmWorkspaceBytes<float>(sizes.rows, sizes.columns, sizes.depth);
}

template <typename T, typename C>
void ConvertedGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a,
                   StridedMatrix<const T> b, StridedMatrix<C> c, bool accumulate, void* workspace) {
  const ConvertedSizes sizes(m, n, k);
  char* at = static_cast<char*>(workspace);
  float* a_block = reinterpret_cast<float*>(at);
  float* b_block = reinterpret_cast<float*>(at += sizes.a_bytes());
  float* sums = reinterpret_cast<float*>(at += sizes.b_bytes());
  void* scratch = at + sizes.c_bytes();
  for (int64_t j = 0; j < n; j += sizes.columns) {
    const int64_t columns = std::min(sizes.columns, n - j);
    for (int64_t i = 0; i < m; i += sizes.rows) {
      const int64_t rows = std::min(sizes.rows, m - i);
      for (int64_t d = 0; d < k; d += sizes.depth) {
        const int64_t depth = std::min(sizes.depth, k - d);
        const StridedMatrix<const float> left = Convert<T>(
            rows, depth,
            {a.data + i * a.row_stride + d * a.column_stride, a.row_stride, a.column_stride},
            a_block);
        const StridedMatrix<const float> right = Convert<T>(
            depth, columns,
            {b.data + d * b.row_stride + j * b.column_stride, b.row_stride, b.column_stride},
            b_block);
        Gemm<float>(rows, columns, depth, left, right, {sums, columns, 1}, d > 0, scratch);
      }
      StoreBlock<C>(
          rows, columns, sums, accumulate,
          {c.data + i * c.row_stride + j * c.column_stride, c.row_stride, c.column_stride});
    }
  }
}

template <typename T, typename C>
size_t HalfGemmWorkspaceBytes(int64_t m, int64_t n, int64_t k) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (HasDotProduct()) return DotGemmWorkspaceBytes(m, n, k, !std::is_same_v<C, float>);
  }
  return ConvertedGemmWorkspaceBytes<T, C>(m, n, k);
}

template <typename T, typename C>
void HalfGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
              StridedMatrix<C> c, bool accumulate, void* workspace) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m && !accumulate; ++i) {
      for (int64_t j = 0; j < n; ++j) c.data[i * c.row_stride + j * c.column_stride] = C{};
    }
    return;
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    static const Bf16Unit unit = OneDnnBf16Unit();
    const bool is_done =
        ChooseBf16Product(unit, HasDotProduct(), m, n, k) == Bf16Product::kOneDnn &&
        OneDnnMatmul<C>(m, n, k, a, b, c, accumulate);
    if (is_done) return;
    if (HasDotProduct()) {
      DotGemm(m, n, k, a, b, c, accumulate, workspace);
      return;
    }
  }
  ConvertedGemm<T, C>(m, n, k, a, b, c, accumulate, workspace);
}

template size_t ConvertedGemmWorkspaceBytes<BFloat16, BFloat16>(int64_t, int64_t, int64_t);
template size_t HalfGemmWorkspaceBytes<BFloat16, BFloat16>(int64_t, int64_t, int64_t);
template void ConvertedGemm(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                            StridedMatrix<const BFloat16>, StridedMatrix<BFloat16>, bool, void*);
template void HalfGemm(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                       StridedMatrix<const BFloat16>, StridedMatrix<BFloat16>, bool, void*);
template size_t ConvertedGemmWorkspaceBytes<BFloat16, float>(int64_t, int64_t, int64_t);
template size_t HalfGemmWorkspaceBytes<BFloat16, float>(int64_t, int64_t, int64_t);
template void ConvertedGemm(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                            StridedMatrix<const BFloat16>, StridedMatrix<float>, bool, void*);
template void HalfGemm(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                       StridedMatrix<const BFloat16>, StridedMatrix<float>, bool, void*);
template size_t ConvertedGemmWorkspaceBytes<Float16, Float16>(int64_t, int64_t, int64_t);
template size_t HalfGemmWorkspaceBytes<Float16, Float16>(int64_t, int64_t, int64_t);
template void ConvertedGemm(int64_t, int64_t, int64_t, StridedMatrix<const Float16>,
                            StridedMatrix<const Float16>, StridedMatrix<Float16>, bool, void*);
template void HalfGemm(int64_t, int64_t, int64_t, StridedMatrix<const Float16>,
                       StridedMatrix<const Float16>, StridedMatrix<Float16>, bool, void*);
template size_t ConvertedGemmWorkspaceBytes<Float16, float>(int64_t, int64_t, int64_t);
template size_t HalfGemmWorkspaceBytes<Float16, float>(int64_t, int64_t, int64_t);
template void ConvertedGemm(int64_t, int64_t, int64_t, StridedMatrix<const Float16>,
                            StridedMatrix<const Float16>, StridedMatrix<float>, bool, void*);
template void HalfGemm(int64_t, int64_t, int64_t, StridedMatrix<const Float16>,
                       StridedMatrix<const Float16>, StridedMatrix<float>, bool, void*);

}  // namespace penstock::kernels
