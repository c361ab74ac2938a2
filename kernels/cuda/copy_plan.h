// Kernels that copy boxes of elements from operands to results: what transpose, slice, concat and
// the planner's local operators have in common.
//
// Thread rule: as kernels/kernel.h.

#ifndef PENSTOCK_KERNELS_CUDA_COPY_PLAN_H_
#define PENSTOCK_KERNELS_CUDA_COPY_PLAN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/box_plan.h"
#include "kernels/cuda/cuda_kernel.h"

namespace penstock::kernels::cuda {

struct CopyPiece {
  Box box;
  int input = 0;
  int output = 0;
  int64_t source_offset = 0;  // in elements
  int64_t target_offset = 0;
};

inline int ElementBytes(const KernelSpec& spec) {
  return static_cast<int>(ByteSize(spec.outputs[0].dtype));
}

// Gives the copies to the stream; those to a result that is not wanted are left out.
absl::Status LaunchPieces(const KernelSpec& spec, const std::vector<CopyPiece>& pieces,
                          const KernelArgs& args, CudaStream& stream);

// A kernel that does nothing else.
KernelOr MakeCopies(const KernelSpec& spec, Stream& stream, std::vector<CopyPiece> pieces);

// Between a tile [.., sum(sizes), ..] and its parts along the axis, each contiguous, one after
// another, of input and output 0. `starts`: where each part begins in the tile; empty: where the
// one before ends.
absl::StatusOr<std::vector<CopyPiece>> PlanParts(const TileDesc& tile, int axis,
                                                 absl::Span<const int64_t> sizes, bool to_parts,
                                                 absl::Span<const int64_t> starts = {});

// Offset in elements of the first element of `inner` inside `outer` in `microbatch`, 0 for an empty
// tile; kInternal unless `outer` covers `inner`.
absl::StatusOr<int64_t> OffsetInTile(const KernelSpec& spec, const TileDesc& outer,
                                     const TileDesc& inner, int64_t microbatch);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_COPY_PLAN_H_
