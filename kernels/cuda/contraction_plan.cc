#include "kernels/cuda/contraction_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/shape.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::kernels::cuda {
namespace {

using Index = ContractionIndex;

// Outermost first, neighbours that continue each other in all tensors joined.
std::vector<Index> Joined(std::vector<Index> indices) {
  std::stable_sort(indices.begin(), indices.end(), [](const Index& x, const Index& y) {
    const int64_t x_stride = x.c_stride != 0 ? x.c_stride : x.a_stride;
    const int64_t y_stride = y.c_stride != 0 ? y.c_stride : y.a_stride;
    return x_stride > y_stride;
  });
  std::vector<Index> joined;
  for (const Index& index : indices) {
    if (!joined.empty()) {
      Index& outer = joined.back();
      if (outer.a_stride == index.a_stride * index.size &&
          outer.b_stride == index.b_stride * index.size &&
          outer.c_stride == index.c_stride * index.size) {
        outer = {outer.size * index.size, index.a_stride, index.b_stride, index.c_stride};
        continue;
      }
    }
    joined.push_back(index);
  }
  return joined;
}

struct Kinds {
  std::vector<Index> batch, m, n, k;
};

Kinds KindsOf(absl::Span<const Index> indices) {
  Kinds kinds;
  for (const Index& index : indices) {
    if (index.size == 1) continue;
    std::vector<Index>& kind = index.c_stride == 0   ? kinds.k
                               : index.b_stride == 0 ? kinds.m
                               : index.a_stride == 0 ? kinds.n
                                                     : kinds.batch;
    kind.push_back(index);
  }
  for (std::vector<Index>* kind : {&kinds.batch, &kinds.m, &kinds.n, &kinds.k}) {
    *kind = Joined(std::move(*kind));
  }
  return kinds;
}

ContractionLoops LoopsOf(const Kinds& kinds) {
  ContractionLoops loops;
  for (const std::vector<Index>* kind : {&kinds.batch, &kinds.m, &kinds.n}) {
    for (const Index& index : *kind) {
      loops.kept_sizes[loops.num_kept] = index.size;
      loops.kept_a[loops.num_kept] = index.a_stride;
      loops.kept_b[loops.num_kept] = index.b_stride;
      loops.kept_c[loops.num_kept] = index.c_stride;
      ++loops.num_kept;
    }
  }
  for (const Index& index : kinds.k) {
    loops.summed_sizes[loops.num_summed] = index.size;
    loops.summed_a[loops.num_summed] = index.a_stride;
    loops.summed_b[loops.num_summed] = index.b_stride;
    ++loops.num_summed;
  }
  return loops;
}

// Candidates for one place of a product: each index of the kind, or a single element if there is
// none. Their positions are those in the kind.
std::vector<Index> Candidates(const std::vector<Index>& kind) {
  return kind.empty() ? std::vector<Index>(1) : kind;
}

ProductShape ShapeOf(const Index& m, const Index& n, const Index& k, const Index& batch) {
  return {.m = m.size,
          .n = n.size,
          .k = k.size,
          .batch = batch.size,
          .a_row = m.a_stride,
          .a_column = k.a_stride,
          .a_batch = batch.a_stride,
          .b_row = k.b_stride,
          .b_column = n.b_stride,
          .b_batch = batch.b_stride,
          .c_row = m.c_stride,
          .c_column = n.c_stride,
          .c_batch = batch.c_stride};
}

// What is left of the kinds after the product has taken its indices.
std::vector<Index> Without(const std::vector<Index>& kind, size_t taken) {
  std::vector<Index> rest = kind;
  if (taken < rest.size()) rest.erase(rest.begin() + static_cast<int64_t>(taken));
  return rest;
}

// The offsets of all iterations of the loops.
std::vector<ProductOffsets> OffsetsOf(const std::vector<Index>& loops) {
  std::vector<ProductOffsets> offsets(1);
  for (const Index& loop : loops) {
    std::vector<ProductOffsets> next;
    for (const ProductOffsets& base : offsets) {
      for (int64_t i = 0; i < loop.size; ++i) {
        next.push_back(
            {base.a + i * loop.a_stride, base.b + i * loop.b_stride, base.c + i * loop.c_stride});
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

int AlignedElements(const ProductPlan& plan) {
  const BlasLayout& layout = plan.layout;
  int64_t bits =
      layout.lda | layout.ldb | layout.ldc | layout.a_batch | layout.b_batch | layout.c_batch;
  for (const ProductOffsets& at : plan.launches) bits |= at.a | at.b | at.c;
  int elements = 8;
  while (bits % elements != 0) elements /= 2;
  return elements;
}

std::optional<ProductPlan> PlanProduct(const Kinds& kinds) {
  if (kinds.k.size() > 1) return std::nullopt;  // sums over launches would be added up in memory
  // Elementwise products are faster in the general kernel than as a batch of 1 x 1 matrices.
  if (kinds.m.empty() && kinds.n.empty() && kinds.k.empty()) return std::nullopt;
  const std::vector<Index> ms = Candidates(kinds.m);
  const std::vector<Index> ns = Candidates(kinds.n);
  const Index k = Candidates(kinds.k)[0];
  std::optional<ProductPlan> best;
  int64_t best_work = -1;
  for (size_t i = 0; i < ms.size(); ++i) {
    for (size_t j = 0; j < ns.size(); ++j) {
      const int64_t work = ms[i].size * ns[j].size;
      if (work <= best_work) continue;
      std::vector<Index> loops = kinds.batch;
      for (const Index& index : Without(kinds.m, i)) loops.push_back(index);
      for (const Index& index : Without(kinds.n, j)) loops.push_back(index);
      // The longest loop is the batch.
      Index batch;
      const auto longest =
          std::max_element(loops.begin(), loops.end(),
                           [](const Index& x, const Index& y) { return x.size < y.size; });
      if (longest != loops.end()) {
        batch = *longest;
        loops.erase(longest);
      }
      if (batch.size > INT32_MAX) continue;  // the library counts in int32_t
      int64_t num_launches = 1;
      for (const Index& loop : loops) num_launches *= loop.size;
      if (num_launches > kMaxProductLaunches) continue;
      const std::optional<BlasLayout> layout = BlasLayoutOf(ShapeOf(ms[i], ns[j], k, batch));
      if (!layout.has_value()) continue;
      best = ProductPlan{*layout, OffsetsOf(loops)};
      best->aligned_elements = AlignedElements(*best);
      best_work = work;
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<ContractionPlan> PlanContraction(absl::Span<const ContractionIndex> indices) {
  const Kinds kinds = KindsOf(indices);
  if (kinds.batch.size() + kinds.m.size() + kinds.n.size() > kMaxLoops ||
      kinds.k.size() > kMaxLoops) {
    return absl::UnimplementedError(StrCat("at most ", kMaxLoops, " kept and ", kMaxLoops,
                                           " summed indices that cannot be joined, not ",
                                           kinds.batch.size() + kinds.m.size() + kinds.n.size(),
                                           " and ", kinds.k.size(), "; contract in several steps"));
  }
  // Products with an empty index are left to the general kernel.
  const bool is_empty = std::any_of(indices.begin(), indices.end(),
                                    [](const Index& index) { return index.size == 0; });
  ContractionPlan plan;
  plan.loops = LoopsOf(kinds);
  if (!is_empty) plan.product = PlanProduct(kinds);
  return plan;
}

bool IsProductType(DType dtype) { return IsFloat(dtype); }

int AlignmentOf(const ProductPlan& plan, const BlasTypes& types) {
  return std::min(16, plan.aligned_elements * static_cast<int>(ByteSize(types.operands)));
}

void* AlignedWorkspace(void* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  const uintptr_t missing = -address % kBlasWorkspaceAlignment;
  return static_cast<std::byte*>(workspace) + missing;
}

}  // namespace penstock::kernels::cuda
