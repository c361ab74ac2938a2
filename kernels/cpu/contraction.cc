#include "kernels/cpu/contraction.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half_gemm.h"

namespace penstock::kernels {
namespace {

using Indices = std::vector<ContractionIndex>;

// Results that SumInBlocks adds up at a time, and the bytes of their block and their sums.
constexpr int64_t kTileRows = 64;
constexpr int64_t kTileColumns = 256;
constexpr size_t kTileElements = kTileRows * kTileColumns;
constexpr size_t kTileBytes = kTileElements * (sizeof(float) + sizeof(double));

// Results that are few enough for blocks at any depth.
constexpr int64_t kFewResults = 4096;

// Multiplications below which a second thread does not pay.
constexpr int64_t kMinProductWork = int64_t{1} << 18;

// Outermost first, neighbours that continue each other in all tensors joined.
void Join(Indices* indices) {
  std::stable_sort(indices->begin(), indices->end(),
                   [](const ContractionIndex& x, const ContractionIndex& y) {
                     const int64_t x_stride = x.c_stride + (x.c_stride == 0 ? x.a_stride : 0);
                     const int64_t y_stride = y.c_stride + (y.c_stride == 0 ? y.a_stride : 0);
                     return x_stride > y_stride;
                   });
  Indices joined;
  for (const ContractionIndex& index : *indices) {
    if (!joined.empty()) {
      ContractionIndex& outer = joined.back();
      if (outer.a_stride == index.a_stride * index.size &&
          outer.b_stride == index.b_stride * index.size &&
          outer.c_stride == index.c_stride * index.size) {
        outer = {outer.size * index.size, index.a_stride, index.b_stride, index.c_stride};
        continue;
      }
    }
    joined.push_back(index);
  }
  *indices = std::move(joined);
}

struct Offsets {
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;
};

Offsets OffsetsOf(const Indices& loops, int64_t iteration) {
  Offsets offsets;
  for (size_t i = loops.size(); i-- > 0;) {
    const int64_t coordinate = iteration % loops[i].size;
    iteration /= loops[i].size;
    offsets.a += coordinate * loops[i].a_stride;
    offsets.b += coordinate * loops[i].b_stride;
    offsets.c += coordinate * loops[i].c_stride;
  }
  return offsets;
}

int64_t Count(const Indices& loops) {
  int64_t count = 1;
  for (const ContractionIndex& loop : loops) count *= loop.size;
  return count;
}

// Each candidate of a kind, or one index of a single element when the kind has none.
Indices Candidates(const Indices& indices) {
  return indices.empty() ? Indices{ContractionIndex()} : indices;
}

template <typename T, typename C>
size_t ProductBytes(int64_t m, int64_t n, int64_t k) {
  if constexpr (kIsHalf<T>) {
    return HalfGemmWorkspaceBytes<T, C>(m, n, k);
  } else {
    return GemmWorkspaceBytes<T>(m, n, k);
  }
}

template <typename T, typename C>
void Product(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
             StridedMatrix<C> c, bool accumulate, void* workspace) {
  if constexpr (kIsHalf<T>) {
    HalfGemm<T, C>(m, n, k, a, b, c, accumulate, workspace);
  } else {
    Gemm<T>(m, n, k, a, b, c, accumulate, workspace);
  }
}

void Erase(Indices* indices, size_t i) {
  if (i < indices->size()) indices->erase(indices->begin() + i);
}

}  // namespace

Contraction::Contraction(absl::Span<const ContractionIndex> indices) {
  Indices batch, m, n, k;
  for (const ContractionIndex& index : indices) {
    if (index.size == 1) continue;
    Indices& kind = index.c_stride == 0   ? k
                    : index.b_stride == 0 ? m
                    : index.a_stride == 0 ? n
                                          : batch;
    kind.push_back(index);
  }
  for (Indices* kind : {&batch, &m, &n, &k}) Join(kind);
  ChooseProduct(&m, &n, &k);
  outputs_ = std::move(batch);
  outputs_.insert(outputs_.end(), m.begin(), m.end());
  outputs_.insert(outputs_.end(), n.begin(), n.end());
  sums_ = std::move(k);
  num_outputs_ = Count(outputs_);
  num_sums_ = Count(sums_);
}

void Contraction::ChooseProduct(Indices* m, Indices* n, Indices* k) {
  const Indices ms = Candidates(*m);
  const Indices ns = Candidates(*n);
  const Indices ks = Candidates(*k);
  size_t best[3] = {0, 0, 0};
  bool best_is_unit = false;
  int64_t best_work = -1;
  for (size_t i = 0; i < ms.size(); ++i) {
    for (size_t j = 0; j < ns.size(); ++j) {
      for (size_t l = 0; l < ks.size(); ++l) {
        const bool is_unit = HasUnitStrides(
            ms[i].size, ns[j].size, ks[l].size, {nullptr, ms[i].a_stride, ks[l].a_stride},
            {nullptr, ks[l].b_stride, ns[j].b_stride}, {nullptr, ms[i].c_stride, ns[j].c_stride});
        const int64_t work = ms[i].size * ns[j].size * ks[l].size;
        if (is_unit > best_is_unit || (is_unit == best_is_unit && work > best_work)) {
          best[0] = i, best[1] = j, best[2] = l;
          best_is_unit = is_unit;
          best_work = work;
        }
      }
    }
  }
  m_ = ms[best[0]];
  n_ = ns[best[1]];
  k_ = ks[best[2]];
  Erase(m, best[0]);
  Erase(n, best[1]);
  Erase(k, best[2]);
}

template <typename T>
bool Contraction::IsDeep() const {
  const int64_t depth = k_.size * num_sums_;
  return std::is_same_v<T, float> &&
         depth > (m_.size * n_.size <= kFewResults ? kBlockDepth : kMaxDepth);
}

template <typename T, typename C>
size_t Contraction::WorkspaceBytes(int num_threads) const {
  const size_t tile_bytes = IsDeep<T>() ? num_threads * kTileBytes : 0;
  const bool needs_none =
      std::is_same_v<T, float> &&
      !MayPack(m_.size, n_.size, k_.size, {nullptr, m_.a_stride, k_.a_stride},
               {nullptr, k_.b_stride, n_.b_stride}, {nullptr, m_.c_stride, n_.c_stride});
  return tile_bytes +
         (needs_none ? 0 : num_threads * ProductBytes<T, C>(m_.size, n_.size, k_.size));
}

void Contraction::SumInBlocks(const Stripe& stripe, const float* a, const float* b, float* c,
                              bool accumulate, void* tiles, void* scratch) const {
  double* sums = static_cast<double*>(tiles);
  float* block = reinterpret_cast<float*>(sums + kTileElements);
  for (int64_t i = 0; i < stripe.rows; i += kTileRows) {
    for (int64_t j = 0; j < stripe.columns; j += kTileColumns) {
      const int64_t rows = std::min(kTileRows, stripe.rows - i);
      const int64_t columns = std::min(kTileColumns, stripe.columns - j);
      const int64_t row = stripe.first_row + i;
      const int64_t column = stripe.first_column + j;
      const int64_t count = rows * columns;
      std::fill(sums, sums + count, 0.0);
      int64_t depth = 0;  // of the block so far
      const auto add_block = [&] {
        for (int64_t e = 0; e < count; ++e) sums[e] += block[e];
        depth = 0;
      };
      for (int64_t sum = 0; sum < num_sums_; ++sum) {
        const Offsets inner = OffsetsOf(sums_, sum);
        for (int64_t d = 0; d < k_.size;) {
          const int64_t terms = std::min(kBlockDepth - depth, k_.size - d);
          Gemm<float>(
              rows, columns, terms,
              {a + inner.a + row * m_.a_stride + d * k_.a_stride, m_.a_stride, k_.a_stride},
              {b + inner.b + column * n_.b_stride + d * k_.b_stride, k_.b_stride, n_.b_stride},
              {block, columns, 1}, /*accumulate=*/depth > 0, scratch);
          d += terms;
          depth += terms;
          if (depth == kBlockDepth) add_block();
        }
      }
      if (depth > 0) add_block();
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t e = 0; e < columns; ++e) {
          float& to = c[(row + r) * m_.c_stride + (column + e) * n_.c_stride];
          const float result = static_cast<float>(sums[r * columns + e]);
          to = accumulate ? to + result : result;
        }
      }
    }
  }
}

template <typename T, typename C>
void Contraction::Run(ThreadPool& pool, const T* a, const T* b, C* c, bool accumulate,
                      void* workspace) const {
  if (num_outputs_ == 0) return;
  // One task is one iteration of the outer loops or, when those are fewer than the threads, a
  // stripe of the product's longer side.
  const int64_t work = m_.size * n_.size * k_.size * num_sums_;
  const bool splits_m = m_.size >= n_.size;
  const int64_t side = splits_m ? m_.size : n_.size;
  const int64_t wanted = (pool.size() + num_outputs_ - 1) / num_outputs_;
  const int64_t stripes =
      std::clamp<int64_t>(std::min(wanted, work / kMinProductWork), 1, std::max<int64_t>(side, 1));
  const int64_t grain = 1 + kMinProductWork / std::max<int64_t>(work / stripes, 1);
  char* gemm_workspace =
      static_cast<char*>(workspace) + (IsDeep<T>() ? pool.size() * kTileBytes : 0);
  const size_t thread_bytes = ProductBytes<T, C>(m_.size, n_.size, k_.size);
  pool.ParallelFor(num_outputs_ * stripes, grain, [&](int64_t begin, int64_t end, int part) {
    void* scratch = gemm_workspace + part * thread_bytes;
    for (int64_t task = begin; task < end; ++task) {
      const Offsets at = OffsetsOf(outputs_, task / stripes);
      const Range stripe = PartOf(side, task % stripes, stripes);
      const Range rows = splits_m ? stripe : Range{0, m_.size};
      const Range columns = splits_m ? Range{0, n_.size} : stripe;
      if constexpr (std::is_same_v<T, float>) {
        if (IsDeep<T>()) {
          SumInBlocks({rows.begin, rows.size(), columns.begin, columns.size()}, a + at.a, b + at.b,
                      c + at.c, accumulate, static_cast<char*>(workspace) + part * kTileBytes,
                      scratch);
          continue;
        }
      }
      const StridedMatrix<C> target = {
          c + at.c + rows.begin * m_.c_stride + columns.begin * n_.c_stride, m_.c_stride,
          n_.c_stride};
      // An empty sum still writes its zeros.
      if (num_sums_ == 0) {
        Product<T, C>(rows.size(), columns.size(), 0, {}, {}, target, accumulate, scratch);
      }
      for (int64_t sum = 0; sum < num_sums_; ++sum) {
        const Offsets inner = OffsetsOf(sums_, sum);
        Product<T, C>(rows.size(), columns.size(), k_.size,
                      {a + at.a + inner.a + rows.begin * m_.a_stride, m_.a_stride, k_.a_stride},
                      {b + at.b + inner.b + columns.begin * n_.b_stride, k_.b_stride, n_.b_stride},
                      target, accumulate || sum > 0, scratch);
      }
    }
  });
}

template size_t Contraction::WorkspaceBytes<float>(int) const;
template size_t Contraction::WorkspaceBytes<double>(int) const;
template size_t Contraction::WorkspaceBytes<int8_t>(int) const;
template size_t Contraction::WorkspaceBytes<uint8_t>(int) const;
template size_t Contraction::WorkspaceBytes<int32_t>(int) const;
template size_t Contraction::WorkspaceBytes<int64_t>(int) const;
template size_t Contraction::WorkspaceBytes<BFloat16>(int) const;
template size_t Contraction::WorkspaceBytes<BFloat16, float>(int) const;
template size_t Contraction::WorkspaceBytes<Float16>(int) const;
template size_t Contraction::WorkspaceBytes<Float16, float>(int) const;
template void Contraction::Run(ThreadPool&, const float*, const float*, float*, bool, void*) const;
template void Contraction::Run(ThreadPool&, const double*, const double*, double*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const int8_t*, const int8_t*, int8_t*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const uint8_t*, const uint8_t*, uint8_t*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const int32_t*, const int32_t*, int32_t*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const int64_t*, const int64_t*, int64_t*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const BFloat16*, const BFloat16*, BFloat16*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const BFloat16*, const BFloat16*, float*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const Float16*, const Float16*, Float16*, bool,
                               void*) const;
template void Contraction::Run(ThreadPool&, const Float16*, const Float16*, float*, bool,
                               void*) const;

}  // namespace penstock::kernels
