// How a contraction runs on a GPU: as matrix products of a library, one or a few, or by the general
// kernel of contraction.h.
//
// Every index has a size and a stride in a, b and c, 0 where the tensor lacks it. It is of one of
// four kinds: batch (in all three), m (in a and c), n (in b and c) and k (not in c: summed).
// Neighbours that continue each other in all tensors are joined. One index of each of m, n and k
// becomes a product and one more a batch of them; what is left are loops over launches.
//
// Example: "bsd,dhe->bshe" joins b, s to m and h, e to n: one product. "bshd,bthd->bhst" has m = s,
// n = t, k = d, a batch of h, and a loop over b.
//
// Thread rule: values.

#ifndef PENSTOCK_KERNELS_CUDA_CONTRACTION_PLAN_H_
#define PENSTOCK_KERNELS_CUDA_CONTRACTION_PLAN_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"

#include "kernels/contraction_indices.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/contraction.h"
#include "kernels/kernel.h"

namespace penstock::kernels::cuda {

// Where one launch of a product has its operands, in elements.
struct ProductOffsets {
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;
};

struct ProductPlan {
  BlasLayout layout;
  std::vector<ProductOffsets> launches;
  // Elements, a power of two up to 8, that divide every distance between columns and between
  // matrices, also between those of one launch and the next.
  int aligned_elements = 1;
};

// More launches than this are slower than the general kernel.
inline constexpr int64_t kMaxProductLaunches = 64;

struct ContractionPlan {
  ContractionLoops loops;              // for the general kernel
  std::optional<ProductPlan> product;  // none: the library cannot do it
};

// kUnimplemented for more than kMaxLoops indices that cannot be joined.
absl::StatusOr<ContractionPlan> PlanContraction(absl::Span<const ContractionIndex> indices);

// Whether the library takes operands of the type.
bool IsProductType(DType dtype);

// Bytes that divide the address of every matrix of the plan, if 16 divides those of the tensors.
int AlignmentOf(const ProductPlan& plan, const BlasTypes& types);

// The first address in a workspace that the library takes for its own.
void* AlignedWorkspace(void* workspace);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CONTRACTION_PLAN_H_
