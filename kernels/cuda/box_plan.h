// Boxes of copies, from shapes and strides.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CUDA_BOX_PLAN_H_
#define PENSTOCK_KERNELS_CUDA_BOX_PLAN_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/cuda/copies.h"

namespace penstock::kernels::cuda {

// The box of `shape`, a stride a dimension on either side: dimensions of size 1 are dropped, those
// that continue each other in both layouts joined, and the one along which the source is contiguous
// stands next to the last where the last is not it. kUnimplemented for more than kMaxBoxDims.
//
// Example: [4, 5, 6] to the transposed [4, 6, 5]: shape {4, 6, 5}, source strides {30, 1, 6},
// target strides {30, 5, 1}.
absl::StatusOr<Box> PlanBox(absl::Span<const int64_t> shape,
                            absl::Span<const int64_t> source_strides,
                            absl::Span<const int64_t> target_strides);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_BOX_PLAN_H_
