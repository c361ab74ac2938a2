// Kernels that the planner's redistributions use on one device: see kernels/cpu/ for what each
// does.

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/copy_plan.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/halo_window.h"

namespace penstock::kernels::cuda {
namespace {

KernelOr CreateLocalSlice(const KernelSpec& spec, Device&, Stream& stream) {
  CopyPiece piece;
  ASSIGN_OR_RETURN(piece.box, PlanBox(spec.outputs[0].shape, RowMajorStrides(spec.inputs[0].shape),
                                      RowMajorStrides(spec.outputs[0].shape)));
  return MakeKernel(
      spec, stream, [spec, piece](const KernelArgs& args, CudaStream& to) -> absl::Status {
        CopyPiece run = piece;
        ASSIGN_OR_RETURN(run.source_offset,
                         OffsetInTile(spec, spec.inputs[0], spec.outputs[0], args.microbatch));
        const int size = ElementBytes(spec);
        return Launched(spec, LaunchCopy(to.handle(), run.box, size,
                                         Input<std::byte>(args, 0) + run.source_offset * size,
                                         args.outputs[0]));
      });
}

// One run a micro-batch, all into the same result; the parts that others hold stay as they are.
KernelOr CreateGatherMicrobatches(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const Box box,
                   PlanBox(spec.inputs[0].shape, RowMajorStrides(spec.inputs[0].shape),
                           RowMajorStrides(spec.outputs[0].shape)));
  return MakeKernel(
      spec, stream, [spec, box](const KernelArgs& args, CudaStream& to) -> absl::Status {
        ASSIGN_OR_RETURN(const int64_t offset,
                         OffsetInTile(spec, spec.outputs[0], spec.inputs[0], args.microbatch));
        const int size = ElementBytes(spec);
        return Launched(spec, LaunchCopy(to.handle(), box, size, args.inputs[0],
                                         Output<std::byte>(args, 0) + offset * size));
      });
}

// With `starts` the parts are any ranges of the axis, otherwise they follow each other.
KernelOr CreatePack(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& tile = spec.inputs[0];
  const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(tile));
  const Shape sizes = spec.attributes.GetInts("sizes");
  const Shape starts = spec.attributes.GetInts("starts");
  for (size_t i = 0; i < starts.size(); ++i) {
    if (i < sizes.size() && starts[i] >= 0 && sizes[i] >= 0 && starts[i] <= tile.shape[axis] &&
        sizes[i] <= tile.shape[axis] - starts[i]) {
      continue;
    }
    return MakeKernel(spec, stream, [](const KernelArgs&, CudaStream&) {
      return absl::InternalError("pack: a range does not lie inside the tile");
    });
  }
  ASSIGN_OR_RETURN(std::vector<CopyPiece> pieces,
                   PlanParts(tile, axis, sizes, /*to_parts=*/true, starts));
  return MakeCopies(spec, stream, std::move(pieces));
}

KernelOr CreateUnpack(const KernelSpec& spec, Device&, Stream& stream) {
  const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(spec.outputs[0]));
  ASSIGN_OR_RETURN(
      std::vector<CopyPiece> pieces,
      PlanParts(spec.outputs[0], axis, spec.attributes.GetInts("sizes"), /*to_parts=*/false));
  return MakeCopies(spec, stream, std::move(pieces));
}

KernelOr CreateJoinHalo(const KernelSpec& spec, Device&, Stream& stream) {
  const HaloWindow halo = HaloWindowOf(spec);
  if (!halo.is_whole) {
    return MakeKernel(spec, stream, [](const KernelArgs&, CudaStream&) {
      return absl::InternalError("join_halo: the tile and the parts do not make up the window");
    });
  }
  const TileDesc& window = spec.outputs[0];
  ASSIGN_OR_RETURN(std::vector<CopyPiece> pieces,
                   PlanParts(window, halo.axis, halo.sizes, /*to_parts=*/false, halo.starts));
  for (CopyPiece& piece : pieces) piece.input = 1;
  if (halo.own_size > 0) {
    const Shape tile_strides = RowMajorStrides(spec.inputs[0].shape);
    const Shape strides = RowMajorStrides(window.shape);
    Shape shape = window.shape;
    shape[halo.axis] = halo.own_size;
    CopyPiece& own = pieces.emplace_back();
    ASSIGN_OR_RETURN(own.box, PlanBox(shape, tile_strides, strides));
    own.source_offset = halo.own_in_tile * tile_strides[halo.axis];
    own.target_offset = halo.own_in_window * strides[halo.axis];
  }
  return MakeCopies(spec, stream, std::move(pieces));
}

bool Overlap(const TileDesc& a, const TileDesc& b) {
  for (int i = 0; i < Rank(a); ++i) {
    const int64_t begin = std::max(TileBegin(a, i, 0), TileBegin(b, i, 0));
    const int64_t end = std::min(TileBegin(a, i, 0) + a.shape[i], TileBegin(b, i, 0) + b.shape[i]);
    if (begin >= end) return false;
  }
  return true;
}

absl::Status CheckParts(const KernelSpec& spec) {
  const TileDesc& whole = spec.outputs[0];
  int64_t num_elements = 0;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const TileDesc& part = spec.inputs[i];
    if (part.dtype != whole.dtype || Rank(part) != Rank(whole)) {
      return absl::InvalidArgumentError(StrCat(spec.op, ": part ", i, " is ", Name(part.dtype),
                                               ToString(part.shape), " of ", Name(whole.dtype),
                                               ToString(whole.shape)));
    }
    for (size_t j = 0; j < i; ++j) {
      if (!Overlap(spec.inputs[j], part)) continue;
      return absl::InvalidArgumentError(StrCat(spec.op, ": parts ", j, " and ", i, " overlap"));
    }
    num_elements += part.num_elements();
  }
  if (num_elements == whole.num_elements()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(spec.op, ": the parts have ", num_elements, " elements of ", whole.num_elements()));
}

KernelOr CreateJoinTiles(const KernelSpec& spec, Device&, Stream& stream) {
  RETURN_IF_ERROR(CheckParts(spec));
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const TileDesc& part = spec.inputs[i];
    CopyPiece& piece = pieces.emplace_back();
    piece.input = static_cast<int>(i);
    ASSIGN_OR_RETURN(piece.box, PlanBox(part.shape, RowMajorStrides(part.shape),
                                        RowMajorStrides(spec.outputs[0].shape)));
  }
  return MakeKernel(
      spec, stream, [spec, pieces](const KernelArgs& args, CudaStream& to) -> absl::Status {
        const int size = ElementBytes(spec);
        for (const CopyPiece& piece : pieces) {
          ASSIGN_OR_RETURN(
              const int64_t offset,
              OffsetInTile(spec, spec.outputs[0], spec.inputs[piece.input], args.microbatch));
          RETURN_IF_ERROR(
              Launched(spec, LaunchCopy(to.handle(), piece.box, size, args.inputs[piece.input],
                                        Output<std::byte>(args, 0) + offset * size)));
        }
        return absl::OkStatus();
      });
}

}  // namespace

void AddLocalKernels(KernelRegistry* registry) {
  AddKernel(registry, "local_slice", {.create = CreateLocalSlice});
  AddKernel(registry, "gather_microbatches", {.create = CreateGatherMicrobatches});
  AddKernel(registry, "pack", {.create = CreatePack});
  AddKernel(registry, "unpack", {.create = CreateUnpack});
  AddKernel(registry, "join_halo", {.create = CreateJoinHalo});
  AddKernel(registry, "join_tiles", {.create = CreateJoinTiles});
}

}  // namespace penstock::kernels::cuda
