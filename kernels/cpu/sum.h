// Sums whose error does not grow with the number of terms.
//
// Terms are added up in their own type within short blocks, the sums of a few blocks likewise, and
// those sums in double (blocked summation: Higham, "The accuracy of floating point summation", SIAM
// J. Sci. Comput. 14(4), 1993; Castaldo, Whaley & Chronopoulos, "Reducing floating point error in
// dot product using the superblock family of algorithms", SIAM J. Sci. Comput. 31(2), 2008). A
// block of a row is four running vectors of eight terms a lane, and four blocks are added up; a
// block of columns is eight rows, and eight blocks are added up.
//
// With u the unit roundoff of the terms' type (2^-24 in f32), the error is at most 16 u times the
// sum of the terms' magnitudes, to first order: a term goes through 7 additions in its block and 7
// over blocks of columns; through 7, 2 for the four vectors and 3 over blocks of a row, and 4 over
// the lanes of a row too short for double. Beyond that come a rounding in double for each of the
// longer sums and, where there are any, the caller's rounding of the result.
//
// Thread rule: pure functions. Invariant: the order of additions depends on the counts alone.

#ifndef PENSTOCK_KERNELS_CPU_SUM_H_
#define PENSTOCK_KERNELS_CPU_SUM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {

namespace sum_internal {

inline constexpr int kBlockVecs = 4;     // running vectors of a row's block: hide the latency
inline constexpr int kBlockDepth = 8;    // terms that a lane of each adds up
inline constexpr int kRowBlocks = 4;     // blocks of a row added up in T
inline constexpr int kBlockRows = 8;     // rows of a block of columns
inline constexpr int kColumnBlocks = 8;  // blocks of columns added up in T

// The halves of a vector of floats as doubles.
struct WideFloats {
  Vec<double> low;
  Vec<double> high;
};
inline WideFloats Widen(Vec<float> x) {
  typedef float Half __attribute__((vector_size(kVecBytes / 2)));
  struct Halves {
    Half low;
    Half high;
  };
  const auto [low, high] = std::bit_cast<Halves>(x);
  return {__builtin_convertvector(low, Vec<double>), __builtin_convertvector(high, Vec<double>)};
}

inline Vec<double> FoldToDouble(Vec<float> x) {
  const auto [low, high] = Widen(x);
  return low + high;
}
inline Vec<double> FoldToDouble(Vec<double> x) { return x; }

template <size_t k, typename V>
inline std::array<V, k> Plus(std::array<V, k> x, const std::array<V, k>& y) {
  for (size_t i = 0; i < k; ++i) x[i] += y[i];
  return x;
}

// f(first) + ... + f(first + n - 1), pairwise.
template <int n, typename F>
inline auto SumPairwise(int first, F f) {
  if constexpr (n == 1) {
    return f(first);
  } else {
    return Plus(SumPairwise<n / 2>(first, f), SumPairwise<n / 2>(first + n / 2, f));
  }
}

}  // namespace sum_internal

// Sum over i < count of f(in[i]...), f on vectors.
template <typename T, typename F, typename... In>
inline double SumOf(int64_t count, F f, const In*... in) {
  using namespace sum_internal;
  constexpr int64_t kStep = kLanes<T>;
  const auto at = [&](int64_t i) { return f(Load(in + i)...); };
  Vec<T> a{}, b{}, c{}, d{};
  const auto add_four = [&](int64_t i) {
    a += at(i);
    b += at(i + kStep);
    c += at(i + 2 * kStep);
    d += at(i + 3 * kStep);
  };
  Vec<T> blocks{};
  const auto end_block = [&] {
    blocks += (a + b) + (c + d);
    a = b = c = d = Vec<T>{};
  };
  Vec<double> total{};
  int depth = 0;
  int num_blocks = 0;
  int64_t i = 0;
  for (; i + kBlockVecs * kStep <= count; i += kBlockVecs * kStep) {
    add_four(i);
    if (++depth < kBlockDepth) continue;
    end_block();
    depth = 0;
    if (++num_blocks < kRowBlocks) continue;
    total += FoldToDouble(blocks);
    blocks = Vec<T>{};
    num_blocks = 0;
  }
  if (i + kStep <= count) {
    a += at(i);
    i += kStep;
  }
  if (i + kStep <= count) {
    b += at(i);
    i += kStep;
  }
  if (i + kStep <= count) {
    c += at(i);
    i += kStep;
  }
  if (i < count) {
    d += FirstLanes(f(LoadPart(in + i, count - i)...), count - i);
  }
  end_block();
  // Where nothing went to double, the lanes are added up in T, too.
  if (count < kRowBlocks * kBlockDepth * kBlockVecs * kStep) return SumLanes(blocks);
  return SumLanes(total + FoldToDouble(blocks));
}

// How a term of a column sum reads and writes memory: a whole vector at a time, or the first
// `count` elements of one, at the end of a row.
struct WholeVec {
  template <typename T>
  Vec<T> Load(const T* from) const {
    return kernels::Load(from);
  }
  template <typename T>
  void Store(T* to, const Vec<T>& v) const {
    kernels::Store<T>(to, v);
  }
};
struct PartOfVec {
  int64_t count;

  template <typename T>
  Vec<T> Load(const T* from) const {
    return LoadPart(from, count);
  }
  template <typename T>
  void Store(T* to, const Vec<T>& v) const {
    StorePart<T>(to, v, count);
  }
};

// Columns that a thread sums up at a time when it goes down all rows of a matrix: the sums stay in
// the first-level cache, and every thread has some.
inline constexpr int64_t kMinColumnPiece = 128;
inline constexpr int64_t kMaxColumnPiece = 1024;
inline int64_t ColumnPiece(int64_t columns, int num_threads) {
  const int64_t share = (columns + num_threads - 1) / num_threads;
  return std::clamp<int64_t>((share + 15) / 16 * 16, kMinColumnPiece, kMaxColumnPiece);
}

// Adds to sums[k][j], for j < count, the sum over i < rows of the k-th term of row i in column j:
// term(row(i), j, memory) is the array of the terms' vectors that start at column j, with what they
// read read through `memory`; row(i), asked for in order, is what the terms of a row share. Each
// term is asked for once, so it may store, too. `rows_at_once`, 1, 2, 4 or 8, is how many rows are
// read side by side.
// REQUIRES: count <= kMaxColumnPiece.
template <typename T, int rows_at_once, size_t k, typename Row, typename Term>
inline void AddColumnSums(int64_t rows, int64_t count, Row row, Term term,
                          const std::array<double*, k>& sums) {
  using namespace sum_internal;
  static_assert(kBlockRows % rows_at_once == 0);
  using Terms = std::array<Vec<T>, k>;
  using Buffer = T[k][kMaxColumnPiece];
  alignas(kVecBytes) Buffer block;   // the sum of a block's rows
  alignas(kVecBytes) Buffer blocks;  // the sum of up to kColumnBlocks blocks
  std::array<decltype(row(int64_t{0})), rows_at_once> group;
  int64_t next = 0;
  // put(column, sum of the next n rows in the vector there).
  const auto sum_group = [&](int n, auto put) {
    for (int r = 0; r < n; ++r) group[r] = row(next++);
    const auto sum = [&](int64_t j, auto memory) {
      const auto of_row = [&](int r) -> Terms { return term(group[r], j, memory); };
      if (n == rows_at_once) return SumPairwise<rows_at_once>(0, of_row);
      Terms terms = of_row(0);
      for (int r = 1; r < n; ++r) terms = Plus(terms, of_row(r));
      return terms;
    };
    int64_t j = 0;
    for (; j + kLanes<T> <= count; j += kLanes<T>) put(j, sum(j, WholeVec()));
    if (j < count) put(j, sum(j, PartOfVec{count - j}));
  };
  const auto add = [](const Buffer& from, int64_t column, Terms terms) {
    for (size_t i = 0; i < k; ++i) terms[i] += Load(&from[i][column]);
    return terms;
  };
  const auto store = [](Buffer& to, int64_t column, const Terms& terms) {
    for (size_t i = 0; i < k; ++i) Store<T>(&to[i][column], terms[i]);
  };
  const auto clear_blocks = [&] {
    for (int64_t j = 0; j < count; j += kLanes<T>) store(blocks, j, Terms{});
  };
  // Adds the sum of the next n rows to `blocks`.
  const auto sum_block = [&](int64_t n) {
    if constexpr (rows_at_once < kBlockRows) {
      if (n > rows_at_once) {
        sum_group(rows_at_once, [&](int64_t j, const Terms& terms) { store(block, j, terms); });
        for (n -= rows_at_once; n > rows_at_once; n -= rows_at_once) {
          sum_group(rows_at_once,
                    [&](int64_t j, const Terms& terms) { store(block, j, add(block, j, terms)); });
        }
        sum_group(static_cast<int>(n), [&](int64_t j, const Terms& terms) {
          store(blocks, j, add(blocks, j, add(block, j, terms)));
        });
        return;
      }
    }
    sum_group(static_cast<int>(n),
              [&](int64_t j, const Terms& terms) { store(blocks, j, add(blocks, j, terms)); });
  };
  while (next < rows) {
    clear_blocks();
    for (int i = 0; i < kColumnBlocks && next < rows; ++i) {
      sum_block(std::min<int64_t>(kBlockRows, rows - next));
    }
    for (size_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < count; ++j) sums[i][j] += blocks[i][j];
    }
  }
}

// AddColumnSums for `count` of the `width` columns of several tensors. Whole rows are read one
// after the other, in the order of memory, which the processor fetches ahead of use. Wide rows are
// read in pieces, which it does not: reading those side by side overlaps the waits.
//
// REQUIRES: as AddColumnSums.
template <typename T, size_t k, typename Row, typename Term>
inline void AddColumnSumsOfTensors(int64_t width, int64_t rows, int64_t count, Row row, Term term,
                                   const std::array<double*, k>& sums) {
  if (width > kMaxColumnPiece) {
    AddColumnSums<T, sum_internal::kBlockRows>(rows, count, row, term, sums);
  } else {
    AddColumnSums<T, 1>(rows, count, row, term, sums);
  }
}

// y[j], for j < count, is the sum of at most kFewRows rows of x, plus y[j] when `adds`.
inline constexpr int kFewRows = sum_internal::kBlockRows;
template <typename T, typename Offset>
inline void SumFewRows(int64_t rows, int64_t count, Offset offset, const T* x, bool adds, T* y) {
  std::array<const T*, kFewRows> from;
  for (int64_t i = 0; i < rows; ++i) from[i] = x + offset(i);
  const auto sum = [&](int64_t j, auto memory) {
    Vec<T> terms = memory.Load(from[0] + j);
    for (int64_t i = 1; i < rows; ++i) terms += memory.Load(from[i] + j);
    memory.Store(y + j, adds ? memory.Load(y + j) + terms : terms);
  };
  int64_t j = 0;
  for (; j + kLanes<T> <= count; j += kLanes<T>) sum(j, WholeVec());
  if (j < count) sum(j, PartOfVec{count - j});
}

// Rows of fewer elements are narrow: AddDenseColumns joins them. A narrow row is never cut into
// pieces, and the rows that it takes to fill whole vectors fit into the largest piece.
inline constexpr int64_t kNarrowColumns =
    std::min(kMinColumnPiece, kMaxColumnPiece / kLanes<float>);

// Adds to sums[j] the sum of column j < count of x, whose row i starts at x + offset(i).
// REQUIRES: as AddColumnSums.
template <typename T, typename Offset>
inline void AddColumns(int64_t rows, int64_t count, Offset offset, const T* x, double* sums) {
  AddColumnSums<Arith<T>, 8, 1>(
      rows, count, [&](int64_t i) { return x + offset(i); },
      [](const T* at, int64_t j, auto memory) { return std::array{memory.Load(at + j)}; }, {sums});
}

// The same for rows without gaps between them. Several rows of few columns make one of many:
// [1000, 3] is summed as [12, 240], the 80 sums of each column are added up, and the last 40 rows
// are summed as they are.
// REQUIRES: as AddColumnSums.
template <typename T>
inline void AddDenseColumns(int64_t rows, int64_t count, const T* x, double* sums) {
  constexpr int64_t kWide = kMaxColumnPiece / 4;
  // The fewest rows that fill whole vectors, and as many of those as make a row wide.
  const int64_t unit = kLanes<T> / std::gcd<int64_t, int64_t>(kLanes<T>, count);
  const int64_t group = unit * std::max<int64_t>(1, kWide / std::max<int64_t>(1, unit * count));
  int64_t done = 0;
  if (count < kNarrowColumns && rows >= 2 * group) {
    alignas(kVecBytes) double wide[kMaxColumnPiece] = {};
    AddColumns(
        rows / group, group * count, [&](int64_t i) { return i * group * count; }, x, wide);
    for (int64_t i = 0; i < group; ++i) {
      for (int64_t j = 0; j < count; ++j) sums[j] += wide[i * count + j];
    }
    done = rows / group * group;
  }
  AddColumns(
      rows - done, count, [&](int64_t i) { return (done + i) * count; }, x, sums);
}

// y[i] = x[i], rounded, plus y[i] when `adds`.
template <typename T>
inline void StoreOrAdd(int64_t count, bool adds, const double* x, T* y) {
  for (int64_t i = 0; i < count; ++i) {
    const T sum = static_cast<T>(x[i]);
    y[i] = adds ? y[i] + sum : sum;
  }
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_SUM_H_
