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
// Example: [4, 5, 6] with its dimensions in reverse order: shape {6, 5, 4}, source strides
// {1, 6, 30}, target strides {20, 4, 1} become the box sizes {5, 6, 4}.
absl::StatusOr<Box> PlanBox(absl::Span<const int64_t> shape,
                            absl::Span<const int64_t> source_strides,
                            absl::Span<const int64_t> target_strides);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_BOX_PLAN_H_
