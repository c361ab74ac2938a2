#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/half.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_matmul.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {
namespace {

// The micro-kernel's tile: kTileRows rows of kTileVecs vectors, to fill the vector registers.
//
// A packed block of a (kBlockRows x kBlockDepth) stays in the second-level cache, and a panel of b
// one tile wide in the first; a block of b is kBlockTiles panels. On Zen 3, 24 panels of depth 384
// gave 81 to 90 GFLOP/s where 8 of depth 256 gave 72 to 90 (products of a GPT's weight gradients).
#if defined(__AVX512F__)
constexpr int kTileRows = 8;
constexpr int kTileVecs = 3;
constexpr int64_t kBlockDepth = 256;
constexpr int64_t kBlockTiles = 8;
#elif defined(__AVX__)
constexpr int kTileRows = 6;
constexpr int kTileVecs = 2;
constexpr int64_t kBlockDepth = 384;
constexpr int64_t kBlockTiles = 24;
#else
constexpr int kTileRows = 4;
constexpr int kTileVecs = 2;
constexpr int64_t kBlockDepth = 256;
constexpr int64_t kBlockTiles = 8;
#endif
template <typename T>
constexpr int kTileColumns = kTileVecs* kLanes<T>;
constexpr int64_t kBlockRows = 12 * kTileRows;
template <typename T>
constexpr int64_t kBlockColumns = kBlockTiles* kTileColumns<T>;

// oneDNN reads a transposed a where it lies if the product is small, which costs more without the
// registers of AVX-512: on Zen 3, where packing reaches 81 to 90 GFLOP/s, oneDNN 2.6 reached 33 at
// 256 x 1024 x 2048, 48 at 1024 x 256 x 2048 and 61 at 256 x 256 x 2048, but 85 or more where the
// result has more elements than this.
#if defined(__AVX512F__)
constexpr int64_t kMaxPackedResults = 0;
#else
constexpr int64_t kMaxPackedResults = int64_t{1} << 19;
#endif

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Arithmetic type: integers wrap.
template <typename T>
struct ArithmeticOf {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct ArithmeticOf<float> {
  using Type = float;
};
template <>
struct ArithmeticOf<double> {
  using Type = double;
};

// rows x depth of `from` (stride `step` between rows, `depth_step` along the depth) into panels of
// `width` rows: panel[p][d][r], padded with zeros.
template <typename T, int width>
void Pack(const T* from, int64_t rows, int64_t depth, int64_t step, int64_t depth_step, T* to) {
  int64_t first = 0;
  if (step == 1) {
    // All whole panels side by side: each cache line is read once, whatever depth_step is.
    const int64_t end = rows / width * width;
    for (int64_t d = 0; d < depth; ++d) {
      T* panel = to + d * width;
      for (int64_t r = 0; r < end; r += width, panel += width * depth) {
        std::memcpy(panel, from + d * depth_step + r, width * sizeof(T));
      }
    }
    first = end;
    to += end * depth;
  }
  for (; first < rows; first += width) {
    const int64_t count = std::min<int64_t>(width, rows - first);
    const T* panel = from + first * step;
    if (count < width) std::fill(to, to + width * depth, T{});
    if (depth_step == 1) {
      for (int64_t r = 0; r < count; ++r) {
        const T* row = panel + r * step;
        for (int64_t d = 0; d < depth; ++d) to[d * width + r] = row[d];
      }
    } else {
      for (int64_t d = 0; d < depth; ++d) {
        for (int64_t r = 0; r < count; ++r) to[d * width + r] = panel[d * depth_step + r * step];
      }
    }
    to += width * depth;
  }
}

// The tile's part [rows, columns] of c = (c +) a b over `depth`, from one panel of each.
template <typename T>
void MicroKernel(int64_t depth, const T* a, const T* b, T* c, int64_t row_stride,
                 int64_t column_stride, int64_t rows, int64_t columns, bool accumulate) {
  constexpr int kColumns = kTileColumns<T>;
  if (column_stride == 1) {  // the tile's lines arrive while its sums are formed
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_prefetch(c + r * row_stride, /*rw=*/1);
      __builtin_prefetch(c + r * row_stride + columns - 1, /*rw=*/1);
    }
  }
  Vec<T> sum[kTileRows][kTileVecs] = {};
  for (int64_t d = 0; d < depth; ++d) {
    Vec<T> right[kTileVecs];
    for (int v = 0; v < kTileVecs; ++v) right[v] = Load(b + d * kColumns + v * kLanes<T>);
    for (int r = 0; r < kTileRows; ++r) {
      const Vec<T> left = Splat(a[d * kTileRows + r]);
      for (int v = 0; v < kTileVecs; ++v) sum[r][v] += left * right[v];
    }
  }
  if (rows == kTileRows && columns == kColumns && column_stride == 1) {
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kTileVecs; ++v) {
        T* to = c + r * row_stride + v * kLanes<T>;
        Store<T>(to, accumulate ? Load(to) + sum[r][v] : sum[r][v]);
      }
    }
    return;
  }
  alignas(kVecBytes) T tile[kTileRows][kColumns];
  for (int r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kTileVecs; ++v) Store<T>(&tile[r][v * kLanes<T>], sum[r][v]);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      T& to = c[r * row_stride + j * column_stride];
      to = accumulate ? static_cast<T>(to + tile[r][j]) : tile[r][j];
    }
  }
}

template <typename T>
void Clear(int64_t m, int64_t n, const StridedMatrix<T>& c) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) c.data[i * c.row_stride + j * c.column_stride] = T{};
  }
}

// Whether rows are contiguous.
bool IsRowMajor(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return (column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1);
}

}  // namespace

template <typename T>
size_t GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k) {
  const auto panels = [](int64_t rows, int64_t columns) {
    return std::min(RoundUp(rows, kTileRows), kBlockRows) +
           std::min<int64_t>(RoundUp(columns, kTileColumns<T>), kBlockColumns<T>);
  };
  const int64_t depth = std::min(k, kBlockDepth);
  return RoundUp(std::max(panels(m, n), panels(n, m)) * depth * sizeof(T), 64) + 64;
}

template <typename T>
void PackedGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
                StridedMatrix<T> c, bool accumulate, void* workspace) {
  using U = typename ArithmeticOf<T>::Type;
  if (k == 0 && !accumulate) Clear(m, n, c);
  const U* a_data = reinterpret_cast<const U*>(a.data);
  const U* b_data = reinterpret_cast<const U*>(b.data);
  U* c_data = reinterpret_cast<U*>(c.data);
  // Panels of b first: they are read with aligned vector loads.
  U* packed_b = static_cast<U*>(workspace);
  U* packed_a = packed_b + std::min<int64_t>(RoundUp(n, kTileColumns<T>), kBlockColumns<T>) *
                               std::min(k, kBlockDepth);
  for (int64_t j0 = 0; j0 < n; j0 += kBlockColumns<T>) {
    const int64_t columns = std::min(kBlockColumns<T>, n - j0);
    for (int64_t d0 = 0; d0 < k; d0 += kBlockDepth) {
      const int64_t depth = std::min(kBlockDepth, k - d0);
      const bool adds = accumulate || d0 > 0;
      Pack<U, kTileColumns<T>>(b_data + d0 * b.row_stride + j0 * b.column_stride, columns, depth,
                               b.column_stride, b.row_stride, packed_b);
      for (int64_t i0 = 0; i0 < m; i0 += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, m - i0);
        Pack<U, kTileRows>(a_data + i0 * a.row_stride + d0 * a.column_stride, rows, depth,
                           a.row_stride, a.column_stride, packed_a);
        for (int64_t j = 0; j < columns; j += kTileColumns<T>) {
          for (int64_t i = 0; i < rows; i += kTileRows) {
            MicroKernel<U>(depth, packed_a + i * depth, packed_b + j * depth,
                           c_data + (i0 + i) * c.row_stride + (j0 + j) * c.column_stride,
                           c.row_stride, c.column_stride, std::min<int64_t>(kTileRows, rows - i),
                           std::min<int64_t>(kTileColumns<T>, columns - j), adds);
          }
        }
      }
    }
  }
}

// A dimension of one element has any stride; oneDNN wants one that holds a row.
std::optional<RowMajor> AsRowMajor(int64_t rows, int64_t columns, int64_t row_stride,
                                   int64_t column_stride) {
  if (IsRowMajor(rows, columns, row_stride, column_stride)) {
    return RowMajor{.is_transposed = false, .stride = std::max(row_stride, columns)};
  }
  if (IsRowMajor(columns, rows, column_stride, row_stride)) {
    return RowMajor{.is_transposed = true, .stride = std::max(column_stride, rows)};
  }
  return std::nullopt;
}

bool HasUnitStrides(int64_t m, int64_t n, int64_t k, const StridedMatrix<const float>& a,
                    const StridedMatrix<const float>& b, const StridedMatrix<float>& c) {
  return AsRowMajor(m, k, a.row_stride, a.column_stride).has_value() &&
         AsRowMajor(k, n, b.row_stride, b.column_stride).has_value() &&
         AsRowMajor(m, n, c.row_stride, c.column_stride).has_value();
}

// Where c is transposed, b' is the first operand.
bool MayPack(int64_t m, int64_t n, int64_t k, const StridedMatrix<const float>& a,
             const StridedMatrix<const float>& b, const StridedMatrix<float>& c) {
  return k == 0 || !HasUnitStrides(m, n, k, a, b, c) ||
         !IsRowMajor(m, k, a.row_stride, a.column_stride) ||
         !IsRowMajor(m, n, c.row_stride, c.column_stride);
}

void PrepareGemm(DType dtype) {
  // Floats of 16 bits may be multiplied as f32 (half_gemm.h).
  if (dtype == DType::kF32 || IsHalf(dtype)) PrepareOneDnnGemm();
  if (dtype == DType::kBF16) PrepareOneDnnMatmul();
}

template <typename T>
void Gemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
          StridedMatrix<T> c, bool accumulate, void* workspace) {
  if (m == 0 || n == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    const std::optional<RowMajor> left = AsRowMajor(m, k, a.row_stride, a.column_stride);
    const std::optional<RowMajor> right = AsRowMajor(k, n, b.row_stride, b.column_stride);
    const std::optional<RowMajor> result = AsRowMajor(m, n, c.row_stride, c.column_stride);
    if (k > 0 && left.has_value() && right.has_value() && result.has_value()) {
      if (result->is_transposed) {  // c' = b' a'
        Gemm<T>(n, m, k, {b.data, b.column_stride, b.row_stride},
                {a.data, a.column_stride, a.row_stride}, {c.data, c.column_stride, c.row_stride},
                accumulate, workspace);
        return;
      }
      if (left->is_transposed && m * n <= kMaxPackedResults) {
        PackedGemm<T>(m, n, k, a, b, c, accumulate, workspace);
        return;
      }
      OneDnnGemm(left->is_transposed, right->is_transposed, m, n, k, a.data, left->stride, b.data,
                 right->stride, c.data, result->stride, accumulate);
      return;
    }
  }
  PackedGemm<T>(m, n, k, a, b, c, accumulate, workspace);
}

template size_t GemmWorkspaceBytes<float>(int64_t, int64_t, int64_t);
template size_t GemmWorkspaceBytes<double>(int64_t, int64_t, int64_t);
template size_t GemmWorkspaceBytes<int8_t>(int64_t, int64_t, int64_t);
template size_t GemmWorkspaceBytes<uint8_t>(int64_t, int64_t, int64_t);
template size_t GemmWorkspaceBytes<int32_t>(int64_t, int64_t, int64_t);
template size_t GemmWorkspaceBytes<int64_t>(int64_t, int64_t, int64_t);
template void PackedGemm(int64_t, int64_t, int64_t, StridedMatrix<const float>,
                         StridedMatrix<const float>, StridedMatrix<float>, bool, void*);
template void PackedGemm(int64_t, int64_t, int64_t, StridedMatrix<const double>,
                         StridedMatrix<const double>, StridedMatrix<double>, bool, void*);
template void Gemm(int64_t, int64_t, int64_t, StridedMatrix<const float>,
                   StridedMatrix<const float>, StridedMatrix<float>, bool, void*);
template void Gemm(int64_t, int64_t, int64_t, StridedMatrix<const double>,
                   StridedMatrix<const double>, StridedMatrix<double>, bool, void*);
template void Gemm(int64_t, int64_t, int64_t, StridedMatrix<const int8_t>,
                   StridedMatrix<const int8_t>, StridedMatrix<int8_t>, bool, void*);
template void Gemm(int64_t, int64_t, int64_t, StridedMatrix<const uint8_t>,
                   StridedMatrix<const uint8_t>, StridedMatrix<uint8_t>, bool, void*);
template void Gemm(int64_t, int64_t, int64_t, StridedMatrix<const int32_t>,
                   StridedMatrix<const int32_t>, StridedMatrix<int32_t>, bool, void*);
template void Gemm(int64_t, int64_t, int64_t, StridedMatrix<const int64_t>,
                   StridedMatrix<const int64_t>, StridedMatrix<int64_t>, bool, void*);

}  // namespace penstock::kernels
