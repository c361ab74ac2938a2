#include "kernels/cpu/dot_gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd.h"

namespace penstock::kernels {

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)

namespace {

// The micro-kernel's tile: rows of vectors of 16 sums, 24 in all, to fill the vector registers. Of
// a product of up to 32 columns, 12 rows of 2 vectors, else 6 rows of 4.
constexpr int kLanesOfSums = 16;
template <int kVecs>
constexpr int kTileRows = 24 / kVecs;
template <int kVecs>
constexpr int kTileColumns = kVecs* kLanesOfSums;

// A block of a stays in the second-level cache while panels of b pass through the first.
constexpr int64_t kBlockRows = 96;
constexpr int64_t kBlockDepth = 512;
constexpr int64_t kBlockColumns = 384;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t Pairs(int64_t depth) { return (depth + 1) / 2; }

uint32_t PairAt(const BFloat16* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}

// The first `count` of 16 elements from two rows, side by side: pair[j] = (low[j], high[j]).
Vec<uint32_t> Interleave(const BFloat16* low, const BFloat16* high, int64_t count) {
  using simd_internal::HalfBits;
  const auto mask = static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
  const auto load = [mask](const BFloat16* from) {
    const auto bits = std::bit_cast<HalfBits>(_mm256_maskz_loadu_epi16(mask, from));
    return __builtin_convertvector(bits, Vec<uint32_t>);
  };
  const Vec<uint32_t> first = load(low);
  return high == nullptr ? first : first | load(high) << 16;
}

// panel[p][j] = (b[2p, j], b[2p + 1, j]) for the panels of `columns` columns of b, one after the
// other, padded with zeros.
template <int kVecs>
void PackColumns(int64_t depth, int64_t columns, const StridedMatrix<const BFloat16>& b,
                 uint32_t* to) {
  constexpr int kWidth = kTileColumns<kVecs>;
  const int64_t pairs = Pairs(depth);
  for (int64_t first = 0; first < columns; first += kWidth, to += pairs * kWidth) {
    const int64_t count = std::min<int64_t>(kWidth, columns - first);
    const BFloat16* from = b.data + first * b.column_stride;
    if (b.column_stride == 1) {
      for (int64_t p = 0; p < pairs; ++p) {
        const BFloat16* low = from + 2 * p * b.row_stride;
        const BFloat16* high = 2 * p + 1 < depth ? low + b.row_stride : nullptr;
        for (int v = 0; v < kVecs; ++v) {
          const int64_t at = v * kLanesOfSums;
          const int64_t left = std::max<int64_t>(count - at, 0);
          Store(to + p * kWidth + at,
                Interleave(low + at, high == nullptr ? nullptr : high + at, left));
        }
      }
      continue;
    }
    if (count < kWidth) std::fill(to, to + pairs * kWidth, 0u);
    if (b.row_stride == 1) {
      // Pairs are words: a transposition in blocks that stay in the first-level cache.
      constexpr int64_t kBlock = 16;
      const int64_t whole = depth / 2;
      for (int64_t p0 = 0; p0 < whole; p0 += kBlock) {
        const int64_t end = std::min(p0 + kBlock, whole);
        for (int64_t j = 0; j < count; ++j) {
          const BFloat16* column = from + j * b.column_stride;
          for (int64_t p = p0; p < end; ++p) to[p * kWidth + j] = PairAt(column + 2 * p);
        }
      }
      if (depth % 2 != 0) {
        for (int64_t j = 0; j < count; ++j) {
          to[whole * kWidth + j] = from[j * b.column_stride + depth - 1].bits;
        }
      }
      continue;
    }
    for (int64_t p = 0; p < pairs; ++p) {
      for (int64_t j = 0; j < count; ++j) {
        const BFloat16* low = from + 2 * p * b.row_stride + j * b.column_stride;
        const uint32_t high = 2 * p + 1 < depth ? low[b.row_stride].bits : 0;
        to[p * kWidth + j] = low->bits | high << 16;
      }
    }
  }
}

// panel[p][r] = (a[r, 2p], a[r, 2p + 1]) for the panels of rows of a, padded with zeros.
template <int kVecs>
void PackRows(int64_t rows, int64_t depth, const StridedMatrix<const BFloat16>& a, uint32_t* to) {
  constexpr int kHeight = kTileRows<kVecs>;
  const int64_t pairs = Pairs(depth);
  for (int64_t first = 0; first < rows; first += kHeight, to += pairs * kHeight) {
    const int64_t count = std::min<int64_t>(kHeight, rows - first);
    const BFloat16* from = a.data + first * a.row_stride;
    if (a.row_stride == 1) {
      constexpr auto kStored = static_cast<__mmask16>((1u << kHeight) - 1);
      for (int64_t p = 0; p < pairs; ++p) {
        const BFloat16* low = from + 2 * p * a.column_stride;
        const BFloat16* high = 2 * p + 1 < depth ? low + a.column_stride : nullptr;
        _mm512_mask_storeu_epi32(to + p * kHeight, kStored,
                                 std::bit_cast<__m512i>(Interleave(low, high, count)));
      }
      continue;
    }
    if (count < kHeight) std::fill(to, to + pairs * kHeight, 0u);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t p = 0; p < pairs; ++p) {
        const BFloat16* low = from + r * a.row_stride + 2 * p * a.column_stride;
        const uint32_t high = 2 * p + 1 < depth ? low[a.column_stride].bits : 0;
        to[p * kHeight + r] = low->bits | high << 16;
      }
    }
  }
}

// c = (c +) sums in the first `rows` rows and `columns` columns of a tile.
template <int kVecs, typename C>
[[gnu::always_inline]] inline void StoreTile(const __m512 (&sum)[kTileRows<kVecs>][kVecs],
                                             int64_t rows, int64_t columns,
                                             const StridedMatrix<C>& c, bool adds) {
  if (c.column_stride == 1) {
#pragma GCC unroll 12
    for (int r = 0; r < kTileRows<kVecs>; ++r) {
      if (r >= rows) break;
      C* row = c.data + r * c.row_stride;
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const int64_t left = std::clamp<int64_t>(columns - v * kLanesOfSums, 0, kLanesOfSums);
        const auto mask = static_cast<__mmask16>((1u << left) - 1);
        C* to = row + v * kLanesOfSums;
        __m512 x = sum[r][v];
        if constexpr (std::is_same_v<C, float>) {
          if (adds) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, to));
          _mm512_mask_storeu_ps(to, mask, x);
        } else {
          if (adds) {
            x += simd_internal::Widen<BFloat16>(
                std::bit_cast<simd_internal::HalfBits>(_mm256_maskz_loadu_epi16(mask, to)));
          }
          _mm256_mask_storeu_epi16(to, mask, std::bit_cast<__m256i>(_mm512_cvtneps_pbh(x)));
        }
      }
    }
    return;
  }
  alignas(64) float tile[kTileRows<kVecs>][kTileColumns<kVecs>];
  for (int r = 0; r < kTileRows<kVecs>; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      _mm512_store_ps(&tile[r][v * kLanesOfSums], sum[r][v]);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      C& to = c.data[r * c.row_stride + j * c.column_stride];
      if constexpr (std::is_same_v<C, float>) {
        to = adds ? to + tile[r][j] : tile[r][j];
      } else {
        to = ToBFloat16(adds ? ToFloat(to) + tile[r][j] : tile[r][j]);
      }
    }
  }
}

// The tile's part [rows, columns] of c = (c +) a b over `depth`, from one panel of b and of a: a
// packed panel, or rows that are `row_stride` apart.
template <int kVecs, bool is_packed, typename C>
void MicroKernel(int64_t depth, const BFloat16* a, int64_t row_stride, const uint32_t* b,
                 int64_t rows, int64_t columns, const StridedMatrix<C>& c, bool adds) {
  constexpr int kHeight = kTileRows<kVecs>;
  constexpr int64_t kPairStep = is_packed ? 2 * kHeight : 2;
  const int64_t row_step = is_packed ? 2 : row_stride;
  __m512 sum[kHeight][kVecs];
#pragma GCC unroll 12
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const auto add_pair = [&](auto left_of) {
    __m512i right[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) right[v] = _mm512_load_si512(b + v * kLanesOfSums);
#pragma GCC unroll 12
    for (int r = 0; r < kHeight; ++r) {
      const auto left = std::bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(left_of(r))));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, std::bit_cast<__m512bh>(right[v]));
      }
    }
    b += kTileColumns<kVecs>;
    a += kPairStep;
  };
  const int64_t whole = is_packed ? Pairs(depth) : depth / 2;
  for (int64_t p = 0; p < whole; ++p) {
    add_pair([&](int r) { return PairAt(a + r * row_step); });
  }
  if (!is_packed && depth % 2 != 0) {
    add_pair([&](int r) { return uint32_t{a[r * row_step].bits}; });
  }
  StoreTile<kVecs>(sum, rows, columns, c, adds);
}

// a[rows, depth] times packed panels of b, for rows and columns of a block.
template <int kVecs, typename C>
void MultiplyBlock(int64_t rows, int64_t columns, int64_t depth,
                   const StridedMatrix<const BFloat16>& a, const uint32_t* packed_b,
                   uint32_t* packed_a, const StridedMatrix<C>& c, bool adds) {
  constexpr int kHeight = kTileRows<kVecs>;
  const int64_t pairs = Pairs(depth);
  // Of rows where they lie, those that fill no tile are packed.
  const int64_t in_place = a.column_stride == 1 ? rows / kHeight * kHeight : 0;
  if (in_place < rows) {
    PackRows<kVecs>(rows - in_place, depth,
                    {a.data + in_place * a.row_stride, a.row_stride, a.column_stride}, packed_a);
  }
  for (int64_t j = 0; j < columns; j += kTileColumns<kVecs>) {
    const uint32_t* panel = packed_b + j * pairs;
    const int64_t width = std::min<int64_t>(kTileColumns<kVecs>, columns - j);
    for (int64_t i = 0; i < rows; i += kHeight) {
      const StridedMatrix<C> tile = {c.data + i * c.row_stride + j * c.column_stride, c.row_stride,
                                     c.column_stride};
      const int64_t height = std::min<int64_t>(kHeight, rows - i);
      if (i < in_place) {
        MicroKernel<kVecs, false>(depth, a.data + i * a.row_stride, a.row_stride, panel, height,
                                  width, tile, adds);
      } else {
        const uint32_t* left = packed_a + (i - in_place) * pairs;
        MicroKernel<kVecs, true>(depth, reinterpret_cast<const BFloat16*>(left), 0, panel, height,
                                 width, tile, adds);
      }
    }
  }
}

// Columns of a product's tiles.
constexpr int64_t kFewColumns = kTileColumns<2>;
int64_t TileColumns(int64_t n) { return n <= kFewColumns ? kTileColumns<2> : kTileColumns<4>; }

// Bytes of the parts of the workspace: b's panels, a's and the sums of a block.
struct Workspace {
  Workspace(int64_t m, int64_t n, int64_t k, bool rounds) {
    const int64_t columns = std::min(RoundUp(n, TileColumns(n)), kBlockColumns);
    const int64_t rows = std::min(RoundUp(m, kTileRows<2>), kBlockRows);
    const int64_t depth = std::min(k, kBlockDepth);
    has_sums = rounds && k > kBlockDepth;
    b_bytes = columns * Pairs(has_sums ? RoundUp(k, 2) : depth) * sizeof(uint32_t);
    sum_bytes = has_sums ? rows * columns * sizeof(float) : 0;
    a_bytes = RoundUp(rows * Pairs(depth) * sizeof(uint32_t), 64);
  }
  size_t size() const { return b_bytes + sum_bytes + a_bytes; }

  bool has_sums;
  size_t b_bytes;
  size_t sum_bytes;
  size_t a_bytes;
};

template <int kVecs, typename C>
void Multiply(int64_t m, int64_t n, int64_t k, const StridedMatrix<const BFloat16>& a,
              const StridedMatrix<const BFloat16>& b, const StridedMatrix<C>& c, bool accumulate,
              void* workspace) {
  const Workspace parts(m, n, k, !std::is_same_v<C, float>);
  auto* packed_b = static_cast<uint32_t*>(workspace);
  auto* sums = reinterpret_cast<float*>(static_cast<char*>(workspace) + parts.b_bytes);
  auto* packed_a =
      reinterpret_cast<uint32_t*>(static_cast<char*>(workspace) + parts.b_bytes + parts.sum_bytes);
  const auto a_at = [&](int64_t i, int64_t d) -> StridedMatrix<const BFloat16> {
    return {a.data + i * a.row_stride + d * a.column_stride, a.row_stride, a.column_stride};
  };
  const auto pack_b = [&](int64_t d, int64_t depth, int64_t j, int64_t columns, uint32_t* to) {
    PackColumns<kVecs>(
        depth, columns,
        {b.data + d * b.row_stride + j * b.column_stride, b.row_stride, b.column_stride}, to);
  };
  for (int64_t j = 0; j < n; j += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, n - j);
    const int64_t padded = RoundUp(columns, kTileColumns<kVecs>);
    const auto c_at = [&](int64_t i) -> StridedMatrix<C> {
      return {c.data + i * c.row_stride + j * c.column_stride, c.row_stride, c.column_stride};
    };
    if (!parts.has_sums) {
      for (int64_t d = 0; d < k; d += kBlockDepth) {
        const int64_t depth = std::min(kBlockDepth, k - d);
        pack_b(d, depth, j, columns, packed_b);
        for (int64_t i = 0; i < m; i += kBlockRows) {
          MultiplyBlock<kVecs, C>(std::min(kBlockRows, m - i), columns, depth, a_at(i, d), packed_b,
                                  packed_a, c_at(i), accumulate || d > 0);
        }
      }
      continue;
    }
    // The sums over all of the depth, before they are rounded.
    for (int64_t d = 0; d < k; d += kBlockDepth) {
      pack_b(d, std::min(kBlockDepth, k - d), j, columns, packed_b + d / 2 * padded);
    }
    for (int64_t i = 0; i < m; i += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, m - i);
      for (int64_t d = 0; d < k; d += kBlockDepth) {
        MultiplyBlock<kVecs, float>(rows, columns, std::min(kBlockDepth, k - d), a_at(i, d),
                                    packed_b + d / 2 * padded, packed_a, {sums, padded, 1}, d > 0);
      }
      const StridedMatrix<C> to = c_at(i);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t v = 0; v < columns; v += kTileColumns<kVecs>) {
          __m512 sum[kTileRows<kVecs>][kVecs] = {};
          for (int l = 0; l < kVecs; ++l) {
            sum[0][l] = _mm512_loadu_ps(sums + r * padded + v + l * kLanesOfSums);
          }
          StoreTile<kVecs, C>(
              sum, 1, std::min<int64_t>(kTileColumns<kVecs>, columns - v),
              {to.data + r * to.row_stride + v * to.column_stride, to.row_stride, to.column_stride},
              accumulate);
        }
      }
    }
  }
}

template <typename C>
void MultiplyAny(int64_t m, int64_t n, int64_t k, const StridedMatrix<const BFloat16>& a,
                 const StridedMatrix<const BFloat16>& b, const StridedMatrix<C>& c, bool accumulate,
                 void* workspace) {
  if (c.column_stride != 1 && c.row_stride == 1) {  // c' = b' a'
    MultiplyAny<C>(n, m, k, {b.data, b.column_stride, b.row_stride},
                   {a.data, a.column_stride, a.row_stride}, {c.data, c.column_stride, c.row_stride},
                   accumulate, workspace);
  } else if (n <= kFewColumns) {
    Multiply<2, C>(m, n, k, a, b, c, accumulate, workspace);
  } else {
    Multiply<4, C>(m, n, k, a, b, c, accumulate, workspace);
  }
}

}  // namespace

bool HasDotProduct() { return true; }

size_t DotGemmWorkspaceBytes(int64_t m, int64_t n, int64_t k, bool rounds) {
  return std::max(Workspace(m, n, k, rounds).size(), Workspace(n, m, k, rounds).size());
}

void DotGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const BFloat16> a,
             StridedMatrix<const BFloat16> b, StridedMatrix<float> c, bool accumulate,
             void* workspace) {
  MultiplyAny<float>(m, n, k, a, b, c, accumulate, workspace);
}
void DotGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const BFloat16> a,
             StridedMatrix<const BFloat16> b, StridedMatrix<BFloat16> c, bool accumulate,
             void* workspace) {
  MultiplyAny<BFloat16>(m, n, k, a, b, c, accumulate, workspace);
}

#else

bool HasDotProduct() { return false; }
size_t DotGemmWorkspaceBytes(int64_t, int64_t, int64_t, bool) { return 0; }
void DotGemm(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
             StridedMatrix<const BFloat16>, StridedMatrix<float>, bool, void*) {}
void DotGemm(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
             StridedMatrix<const BFloat16>, StridedMatrix<BFloat16>, bool, void*) {}

#endif

}  // namespace penstock::kernels
