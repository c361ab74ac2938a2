#include "kernels/cpu/attention_core.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half_gemm.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 128;

// Keys, or queries, whose part of a result is added up in T before it goes to double.
constexpr int64_t kSumTerms = 1024;
static_assert(kSumTerms % kKeyBlock == 0 && kSumTerms % kQueryBlock == 0);

// Multiplications below which a second thread does not pay.
constexpr int64_t kMinTaskWork = int64_t{1} << 17;

size_t Align(size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

// One block of scores.
template <typename T>
constexpr size_t kScoreBytes = kQueryBlock* kKeyBlock * sizeof(T);

// Operands of T = BFloat16 are multiplied as such. Scores and sums are f32 (Arith<T>);
// probabilities and their gradients are rounded to be multiplied, and results at the end.

template <typename T>
size_t ProductBytes(int64_t m, int64_t n, int64_t k) {
  if constexpr (kIsHalf<T>) {
    return HalfGemmWorkspaceBytes<T, float>(m, n, k);
  } else {
    return GemmWorkspaceBytes<T>(m, n, k);
  }
}

template <typename T>
void Product(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
             StridedMatrix<Arith<T>> c, bool accumulate, void* workspace) {
  if constexpr (kIsHalf<T>) {
    HalfGemm<T, float>(m, n, k, a, b, c, accumulate, workspace);
  } else {
    Gemm<T>(m, n, k, a, b, c, accumulate, workspace);
  }
}

template <typename T>
size_t BlockGemmBytes(int64_t width) {
  return std::max({ProductBytes<T>(kQueryBlock, kKeyBlock, width),
                   ProductBytes<T>(kQueryBlock, width, kKeyBlock),
                   ProductBytes<T>(kKeyBlock, width, kQueryBlock)});
}

// `count` rows of sums in f32, where T has 16 bits.
template <typename T>
size_t SumBytes(int64_t count, int64_t width) {
  return kIsHalf<T> ? Align(count * width * sizeof(float)) : 0;
}

// A block of scores in 16 bits, where T has those.
template <typename T>
constexpr size_t kRoundedBytes = kIsHalf<T> ? kScoreBytes<T> : 0;

// Scores as operands of a product: rounded row by row to `rounded`, or as they are.
template <typename T>
const T* AsOperand(int64_t rows, int64_t columns, const Arith<T>* scores, T* rounded) {
  if constexpr (kIsHalf<T>) {
    for (int64_t i = 0; i < rows; ++i) {
      Map(
          columns, [](auto v) { return v; }, rounded + i * kKeyBlock, scores + i * kKeyBlock);
    }
    return rounded;
  } else {
    return scores;
  }
}

// The sums in double of a block of queries; none where the keys are few.
size_t CarryBytes(const AttentionShape& shape) {
  if (shape.keys <= kSumTerms) return 0;
  return Align(kQueryBlock * shape.width * sizeof(double));
}

// Heads of queries that share one of the keys.
int64_t GroupSize(const AttentionShape& shape) {
  return shape.key_heads > 0 ? shape.heads / shape.key_heads : 1;
}

// The sums in double of the dq of the heads that share one of the keys; none where the keys are
// few.
size_t DqCarryBytes(const AttentionShape& shape) {
  if (shape.keys <= kSumTerms) return 0;
  return Align(GroupSize(shape) * shape.queries * shape.width * sizeof(double));
}

// The sums in double of a block of keys' dk, and as many of its dv; none where the queries are few.
size_t KeyCarryBytes(const AttentionShape& shape) {
  if (GroupSize(shape) * shape.queries <= kSumTerms) return 0;
  return Align(kKeyBlock * shape.width * sizeof(double));
}

template <typename T>
size_t ForwardThreadBytes(const AttentionShape& shape) {
  return kScoreBytes<Arith<T>> + Align(kQueryBlock * sizeof(Arith<T>)) +
         Align(kQueryBlock * sizeof(double)) + CarryBytes(shape) + kRoundedBytes<T> +
         SumBytes<T>(kQueryBlock, shape.width) + BlockGemmBytes<T>(shape.width);
}

template <typename T>
size_t BackwardThreadBytes(const AttentionShape& shape) {
  const int64_t queries = GroupSize(shape) * shape.queries;
  return 2 * kScoreBytes<Arith<T>> + Align(queries * sizeof(Arith<T>)) + DqCarryBytes(shape) +
         2 * KeyCarryBytes(shape) + 2 * kRoundedBytes<T> + SumBytes<T>(queries, shape.width) +
         2 * SumBytes<T>(kKeyBlock, shape.width) + BlockGemmBytes<T>(shape.width);
}

// Keys that the tile's query `query` sees.
int64_t VisibleKeys(const AttentionShape& shape, int64_t query) {
  if (!shape.is_causal) return shape.keys;
  return std::clamp<int64_t>(query + shape.causal_offset + 1, 0, shape.keys);
}

int64_t LseRows(const AttentionShape& shape) {
  return shape.lse_rows > 0 ? shape.lse_rows : shape.queries;
}

// The first query that sees a key from `key` on; `queries` for none.
int64_t FirstQuery(const AttentionShape& shape, int64_t key) {
  return shape.is_causal ? std::clamp<int64_t>(key - shape.causal_offset, 0, shape.queries) : 0;
}

// Rows of scores are read and written in whole vectors, for which a block has room; what a row does
// not see is masked by the position in the vector.
template <typename T>
Vec<IntOf<T>> Positions() {
  Vec<IntOf<T>> positions;
  for (int i = 0; i < kLanes<T>; ++i) positions[i] = i;
  return positions;
}

// The largest of the first `visible` elements; -inf for none. The rest of the last vector becomes
// -inf.
template <typename T>
T MaskRow(T* row, int64_t visible) {
  const Vec<T> lowest = Splat(-std::numeric_limits<T>::infinity());
  Vec<T> max = lowest;
  int64_t i = 0;
  for (; i + kLanes<T> <= visible; i += kLanes<T>) max = Max(max, Load(row + i));
  if (i < visible) {
    const auto left = static_cast<IntOf<T>>(visible - i);
    const Vec<T> last = Positions<T>() < left ? Load(row + i) : lowest;
    Store<T>(row + i, last);
    max = Max(max, last);
  }
  return MaxLanes(max);
}

// row[i] = exp(row[i] * scale - shift) in the vectors that hold the first `visible` elements, after
// MaskRow; 0 from there up to count. Returns the sum.
template <typename T>
T ExpRow(T* row, int64_t visible, int64_t count, T scale, T shift) {
  const auto s = Splat(scale);
  const auto b = Splat(shift);
  Vec<T> sum{};
  int64_t i = 0;
  for (; i < visible; i += kLanes<T>) {
    const Vec<T> p = Exp(Load(row + i) * s - b);
    Store<T>(row + i, p);
    sum += p;
  }
  if (i < count) std::fill(row + i, row + count, T{});
  return SumLanes(sum);
}

// p[i] = exp(p[i] * scale - lse) and ds[i] = p[i] (ds[i] - delta) scale for i < visible; both 0
// from there up to count.
template <typename T>
void ProbabilityGrads(T* p, T* ds, int64_t visible, int64_t count, T scale, T lse, T delta) {
  const auto positions = Positions<T>();
  const Vec<T> zero{};
  int64_t i = 0;
  for (; i < visible; i += kLanes<T>) {
    const auto left = static_cast<IntOf<T>>(visible - i);
    const Vec<T> probability = Exp(Load(p + i) * scale - lse);
    const Vec<T> grad = probability * (Load(ds + i) - delta) * scale;
    Store<T>(p + i, positions < left ? probability : zero);
    Store<T>(ds + i, positions < left ? grad : zero);
  }
  if (i >= count) return;
  std::fill(p + i, p + count, T{});
  std::fill(ds + i, ds + count, T{});
}

template <typename T>
void ScaleRow(T* row, int64_t count, T factor) {
  const auto f = Splat(factor);
  Map(
      count, [&](auto x) { return x * f; }, row, row);
}

// carry[rows, width] += x[rows, width], which becomes 0.
template <typename T>
void MoveToCarry(int64_t rows, int64_t width, T* x, int64_t stride, double* carry) {
  for (int64_t i = 0; i < rows; ++i) {
    T* row = x + i * stride;
    double* to = carry + i * width;
    for (int64_t d = 0; d < width; ++d) to[d] += row[d];
    std::fill_n(row, width, T{});
  }
}

// x[rows, width] = carry[rows, width] + x.
template <typename T>
void AddCarry(int64_t rows, int64_t width, const double* carry, T* x, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    T* row = x + i * stride;
    const double* from = carry + i * width;
    for (int64_t d = 0; d < width; ++d) row[d] = static_cast<T>(from[d] + row[d]);
  }
}

// scores[rows, columns] = x y', x and y being `rows` and `columns` rows of `width`.
template <typename T>
void Scores(int64_t rows, int64_t columns, int64_t width, const T* x, int64_t x_stride, const T* y,
            int64_t y_stride, Arith<T>* scores, void* scratch) {
  Product<T>(rows, columns, width, {x, x_stride, 1}, {y, 1, y_stride}, {scores, kKeyBlock, 1},
             /*accumulate=*/false, scratch);
}

// to[rows, width] = from, rounded, with its rows `stride` apart.
template <typename T>
void StoreRows(int64_t rows, int64_t width, const float* from, T* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    Map(
        width, [](auto v) { return v; }, to + i * stride, from + i * width);
  }
}

// One head's block of queries starting at `first`.
template <typename T>
void ForwardBlock(const AttentionShape& shape, int64_t b, int64_t h, int64_t first,
                  const HeadTensor<const T>& q, const HeadTensor<const T>& k,
                  const HeadTensor<const T>& v, const HeadTensor<T>& o, Arith<T>* lse,
                  char* workspace, const AttentionSoFar<T>* so_far) {
  const int64_t rows = std::min(kQueryBlock, shape.queries - first);
  using A = Arith<T>;
  A* scores = reinterpret_cast<A*>(workspace);
  A* max = reinterpret_cast<A*>(workspace + kScoreBytes<A>);
  double* sum =
      reinterpret_cast<double*>(workspace + kScoreBytes<A> + Align(kQueryBlock * sizeof(A)));
  double* carry = sum + Align(kQueryBlock * sizeof(double)) / sizeof(double);
  T* rounded = reinterpret_cast<T*>(reinterpret_cast<char*>(carry) + CarryBytes(shape));
  A* sums = reinterpret_cast<A*>(reinterpret_cast<char*>(rounded) + kRoundedBytes<T>);
  char* scratch = reinterpret_cast<char*>(sums) + SumBytes<T>(kQueryBlock, shape.width);
  bool has_carry = false;
  bool accumulates = false;
  const A scale = 1 / std::sqrt(static_cast<A>(shape.width));
  A* out = sums;
  int64_t out_stride = shape.width;
  if constexpr (!kIsHalf<T>) {
    out = o.At(b, h, first);
    out_stride = o.strides.row;
  }
  std::fill(max, max + rows, -std::numeric_limits<A>::infinity());
  std::fill(sum, sum + rows, 0.0);
  const int64_t first_lse = (b * shape.heads + h) * LseRows(shape) + first;
  if constexpr (!kIsHalf<T>) {
    if (so_far != nullptr) {
      // A normalised result is one whose maximum is its log-sum-exp and whose sum is 1.
      for (int64_t i = 0; i < rows; ++i) {
        max[i] = so_far->lse[first_lse + i];
        sum[i] = max[i] > -std::numeric_limits<T>::infinity() || max[i] != max[i] ? 1 : 0;
        const T* from = so_far->o.At(b, h, first + i);
        if (from != out + i * out_stride) std::copy_n(from, shape.width, out + i * out_stride);
      }
      accumulates = true;
    }
  }

  const int64_t key_head = h / GroupSize(shape);
  const int64_t last_key = VisibleKeys(shape, first + rows - 1);
  for (int64_t key = 0; key < last_key; key += kKeyBlock) {
    const int64_t columns = std::min(kKeyBlock, last_key - key);
    Scores<T>(rows, columns, shape.width, q.At(b, h, first), q.strides.row, k.At(b, key_head, key),
              k.strides.row, scores, scratch);
    for (int64_t i = 0; i < rows; ++i) {
      A* row = scores + i * kKeyBlock;
      const int64_t visible = std::clamp<int64_t>(VisibleKeys(shape, first + i) - key, 0, columns);
      const A new_max = std::max(max[i], MaskRow(row, visible) * scale);
      const A row_sum = ExpRow(row, visible, columns, scale, new_max);
      if ((key > 0 || so_far != nullptr) && visible > 0) {
        const A correction = std::exp(max[i] - new_max);
        sum[i] *= correction;
        ScaleRow(out + i * out_stride, shape.width, correction);
        if (has_carry) {
          ScaleRow(carry + i * shape.width, shape.width, static_cast<double>(correction));
        }
      }
      sum[i] += row_sum;
      max[i] = new_max;
    }
    Product<T>(
        rows, shape.width, columns, {AsOperand<T>(rows, columns, scores, rounded), kKeyBlock, 1},
        {v.At(b, key_head, key), v.strides.row, 1}, {out, out_stride, 1}, accumulates, scratch);
    accumulates = (key + kKeyBlock) % kSumTerms != 0 || key + kKeyBlock >= last_key;
    if (accumulates) continue;
    for (int64_t i = 0; i < rows; ++i) {
      const A* row = out + i * out_stride;
      double* to = carry + i * shape.width;
      for (int64_t d = 0; d < shape.width; ++d) to[d] = has_carry ? to[d] + row[d] : row[d];
    }
    has_carry = true;
  }
  if (has_carry) AddCarry(rows, shape.width, carry, out, out_stride);
  for (int64_t i = 0; i < rows; ++i) {
    A* row = out + i * out_stride;
    if (sum[i] > 0 || sum[i] != sum[i]) {
      ScaleRow(row, shape.width, static_cast<A>(1 / sum[i]));
    } else {
      std::fill(row, row + shape.width, A{});
    }
  }
  if constexpr (kIsHalf<T>) {
    StoreRows(rows, shape.width, out, o.At(b, h, first), o.strides.row);
  }
  if (lse == nullptr) return;
  A* to = lse + first_lse;
  for (int64_t i = 0; i < rows; ++i) {
    to[i] = static_cast<A>(max[i] + std::log(sum[i]));
  }
}

// Gradients of one head of the keys and of the heads of queries that share it. Recomputes
// p = exp(scale q k' - lse) tile by tile; with delta = rowsum(do o) (Dao 2022, section B.4):
//   dv = p' do,  ds = scale p (do v' - delta),  dq = ds k,  dk = ds' q.
// Each result is added up in T over kSumTerms keys or queries, and those sums in double.
template <typename T>
void BackwardHead(const AttentionShape& shape, int64_t b, int64_t key_head,
                  const AttentionGradOperands<T>& x, char* workspace) {
  const int64_t group = GroupSize(shape);
  const int64_t first_head = key_head * group;
  using A = Arith<T>;
  A* scores = reinterpret_cast<A*>(workspace);
  A* d_scores = reinterpret_cast<A*>(workspace + kScoreBytes<A>);
  A* deltas = reinterpret_cast<A*>(workspace + 2 * kScoreBytes<A>);
  double* dq_carries = reinterpret_cast<double*>(workspace + 2 * kScoreBytes<A> +
                                                 Align(group * shape.queries * sizeof(A)));
  double* dk_carry = dq_carries + DqCarryBytes(shape) / sizeof(double);
  double* dv_carry = dk_carry + KeyCarryBytes(shape) / sizeof(double);
  T* rounded = reinterpret_cast<T*>(reinterpret_cast<char*>(dv_carry) + KeyCarryBytes(shape));
  T* d_rounded = rounded + kRoundedBytes<T> / sizeof(T);
  // Sums of T = BFloat16 until they are rounded; of others, the results themselves.
  A* dq_sums = reinterpret_cast<A*>(d_rounded + kRoundedBytes<T> / sizeof(T));
  A* dk_sums = dq_sums + SumBytes<T>(group * shape.queries, shape.width) / sizeof(A);
  A* dv_sums = dk_sums + SumBytes<T>(kKeyBlock, shape.width) / sizeof(A);
  char* scratch = reinterpret_cast<char*>(dv_sums) + SumBytes<T>(kKeyBlock, shape.width);
  int64_t dq_stride = shape.width;
  int64_t dk_stride = shape.width;
  int64_t dv_stride = shape.width;
  if constexpr (!kIsHalf<T>) {
    dq_stride = x.dq.strides.row;
    dk_stride = x.dk.strides.row;
    dv_stride = x.dv.strides.row;
  }
  const auto dq_at = [&](int64_t head, int64_t query) -> A* {
    if constexpr (kIsHalf<T>) {
      return dq_sums + ((head - first_head) * shape.queries + query) * shape.width;
    } else {
      return x.dq.At(b, head, query);
    }
  };
  const int64_t head_size = shape.queries * shape.width;
  const bool carries_dq = DqCarryBytes(shape) > 0;
  if (carries_dq) std::fill_n(dq_carries, group * head_size, 0.0);
  const A scale = 1 / std::sqrt(static_cast<A>(shape.width));
  for (int64_t i = 0; i < group * shape.queries; ++i) {
    const int64_t h = first_head + i / shape.queries;
    const int64_t query = i % shape.queries;
    deltas[i] = static_cast<A>(SumOf<T>(
        shape.width, [](auto d, auto y) { return d * y; }, x.d_o.At(b, h, query),
        x.o.At(b, h, query)));
    std::fill_n(dq_at(h, query), shape.width, A{});
  }

  for (int64_t key = 0; key < shape.keys; key += kKeyBlock) {
    const int64_t block_keys = std::min(kKeyBlock, shape.keys - key);
    const T* k = x.k.At(b, key_head, key);
    const T* v = x.v.At(b, key_head, key);
    A* dk = dk_sums;
    A* dv = dv_sums;
    if constexpr (!kIsHalf<T>) {
      dk = x.dk.At(b, key_head, key);
      dv = x.dv.At(b, key_head, key);
    }
    for (int64_t j = 0; j < block_keys; ++j) {
      std::fill_n(dk + j * dk_stride, shape.width, A{});
      std::fill_n(dv + j * dv_stride, shape.width, A{});
    }
    const int64_t first_query = FirstQuery(shape, key);
    const bool carries_keys = group * (shape.queries - first_query) > kSumTerms;
    if (carries_keys) {
      std::fill_n(dk_carry, block_keys * shape.width, 0.0);
      std::fill_n(dv_carry, block_keys * shape.width, 0.0);
    }
    int64_t num_terms = 0;  // of dk and dv that are not in the carry
    for (int64_t i = 0; i < group; ++i) {
      const int64_t h = first_head + i;
      const A* lse = x.lse + (b * shape.heads + h) * LseRows(shape);
      const A* delta = deltas + i * shape.queries;
      for (int64_t query = first_query; query < shape.queries; query += kQueryBlock) {
        const int64_t rows = std::min(kQueryBlock, shape.queries - query);
        const int64_t columns = std::min(block_keys, VisibleKeys(shape, query + rows - 1) - key);
        const T* q = x.q.At(b, h, query);
        const T* d_o = x.d_o.At(b, h, query);
        Scores<T>(rows, columns, shape.width, q, x.q.strides.row, k, x.k.strides.row, scores,
                  scratch);
        Scores<T>(rows, columns, shape.width, d_o, x.d_o.strides.row, v, x.v.strides.row, d_scores,
                  scratch);
        for (int64_t row = 0; row < rows; ++row) {
          A* p = scores + row * kKeyBlock;
          A* ds = d_scores + row * kKeyBlock;
          const int64_t visible =
              std::clamp<int64_t>(VisibleKeys(shape, query + row) - key, 0, columns);
          ProbabilityGrads(p, ds, visible, columns, scale, lse[query + row], delta[query + row]);
        }
        const T* p = AsOperand<T>(rows, columns, scores, rounded);
        const T* ds = AsOperand<T>(rows, columns, d_scores, d_rounded);
        Product<T>(columns, shape.width, rows, {p, 1, kKeyBlock}, {d_o, x.d_o.strides.row, 1},
                   {dv, dv_stride, 1}, /*accumulate=*/true, scratch);
        Product<T>(columns, shape.width, rows, {ds, 1, kKeyBlock}, {q, x.q.strides.row, 1},
                   {dk, dk_stride, 1}, /*accumulate=*/true, scratch);
        Product<T>(rows, shape.width, columns, {ds, kKeyBlock, 1}, {k, x.k.strides.row, 1},
                   {dq_at(h, query), dq_stride, 1}, /*accumulate=*/true, scratch);
        num_terms += rows;
        if (carries_keys && num_terms + kQueryBlock > kSumTerms) {
          MoveToCarry(block_keys, shape.width, dk, dk_stride, dk_carry);
          MoveToCarry(block_keys, shape.width, dv, dv_stride, dv_carry);
          num_terms = 0;
        }
      }
    }
    if (carries_keys) {
      AddCarry(block_keys, shape.width, dk_carry, dk, dk_stride);
      AddCarry(block_keys, shape.width, dv_carry, dv, dv_stride);
    }
    if constexpr (kIsHalf<T>) {
      StoreRows(block_keys, shape.width, dk, x.dk.At(b, key_head, key), x.dk.strides.row);
      StoreRows(block_keys, shape.width, dv, x.dv.At(b, key_head, key), x.dv.strides.row);
    }
    if (carries_dq && (key + kKeyBlock) % kSumTerms == 0) {
      // No earlier query has seen these kSumTerms keys.
      const int64_t first = FirstQuery(shape, key + kKeyBlock - kSumTerms);
      for (int64_t i = 0; i < group; ++i) {
        MoveToCarry(shape.queries - first, shape.width, dq_at(first_head + i, first), dq_stride,
                    dq_carries + i * head_size + first * shape.width);
      }
    }
  }
  for (int64_t i = 0; i < group && carries_dq; ++i) {
    AddCarry(shape.queries, shape.width, dq_carries + i * head_size, dq_at(first_head + i, 0),
             dq_stride);
  }
  if constexpr (kIsHalf<T>) {
    for (int64_t i = 0; i < group; ++i) {
      StoreRows(shape.queries, shape.width, dq_at(first_head + i, 0), x.dq.At(b, first_head + i, 0),
                x.dq.strides.row);
    }
  }
}

}  // namespace

template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape, int num_threads) {
  return num_threads * ForwardThreadBytes<T>(shape);
}

template <typename T>
size_t AttentionGradWorkspaceBytes(const AttentionShape& shape, int num_threads) {
  return std::min<int64_t>(num_threads, shape.batch * shape.key_heads) *
         BackwardThreadBytes<T>(shape);
}

template <typename T>
void AttentionForward(ThreadPool& pool, const AttentionShape& shape, HeadTensor<const T> q,
                      HeadTensor<const T> k, HeadTensor<const T> v, HeadTensor<T> o, Arith<T>* lse,
                      void* workspace, const AttentionSoFar<T>* so_far) {
  const int64_t blocks = (shape.queries + kQueryBlock - 1) / kQueryBlock;
  const int64_t work = kQueryBlock * shape.keys * shape.width;
  pool.ParallelFor(
      shape.batch * shape.heads * blocks, 1 + kMinTaskWork / std::max<int64_t>(work, 1),
      [&](int64_t begin, int64_t end, int part) {
        char* scratch = static_cast<char*>(workspace) + part * ForwardThreadBytes<T>(shape);
        for (int64_t task = begin; task < end; ++task) {
          const int64_t head = task / blocks;
          ForwardBlock<T>(shape, head / shape.heads, head % shape.heads,
                          task % blocks * kQueryBlock, q, k, v, o, lse, scratch, so_far);
        }
      });
}

template <typename T>
void AttentionBackward(ThreadPool& pool, const AttentionShape& shape,
                       const AttentionGradOperands<T>& x, void* workspace) {
  const int64_t work = GroupSize(shape) * shape.queries * shape.keys * shape.width;
  pool.ParallelFor(
      shape.batch * shape.key_heads, 1 + kMinTaskWork / std::max<int64_t>(work, 1),
      [&](int64_t begin, int64_t end, int part) {
        char* scratch = static_cast<char*>(workspace) + part * BackwardThreadBytes<T>(shape);
        for (int64_t head = begin; head < end; ++head) {
          BackwardHead<T>(shape, head / shape.key_heads, head % shape.key_heads, x, scratch);
        }
      });
}

template size_t AttentionWorkspaceBytes<float>(const AttentionShape&, int);
template size_t AttentionWorkspaceBytes<double>(const AttentionShape&, int);
template size_t AttentionWorkspaceBytes<BFloat16>(const AttentionShape&, int);
template size_t AttentionGradWorkspaceBytes<BFloat16>(const AttentionShape&, int);
template size_t AttentionGradWorkspaceBytes<float>(const AttentionShape&, int);
template size_t AttentionGradWorkspaceBytes<double>(const AttentionShape&, int);
template void AttentionForward(ThreadPool&, const AttentionShape&, HeadTensor<const float>,
                               HeadTensor<const float>, HeadTensor<const float>, HeadTensor<float>,
                               float*, void*, const AttentionSoFar<float>*);
template void AttentionForward(ThreadPool&, const AttentionShape&, HeadTensor<const double>,
                               HeadTensor<const double>, HeadTensor<const double>,
                               HeadTensor<double>, double*, void*, const AttentionSoFar<double>*);
template void AttentionForward(ThreadPool&, const AttentionShape&, HeadTensor<const BFloat16>,
                               HeadTensor<const BFloat16>, HeadTensor<const BFloat16>,
                               HeadTensor<BFloat16>, float*, void*,
                               const AttentionSoFar<BFloat16>*);
template void AttentionBackward(ThreadPool&, const AttentionShape&,
                                const AttentionGradOperands<BFloat16>&, void*);
template void AttentionBackward(ThreadPool&, const AttentionShape&,
                                const AttentionGradOperands<float>&, void*);
template void AttentionBackward(ThreadPool&, const AttentionShape&,
                                const AttentionGradOperands<double>&, void*);

}  // namespace penstock::kernels
