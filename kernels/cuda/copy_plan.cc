#include "kernels/cuda/copy_plan.h"

#include <utility>

namespace penstock::kernels::cuda {

absl::Status LaunchPieces(const KernelSpec& spec, const std::vector<CopyPiece>& pieces,
                          const KernelArgs& args, CudaStream& stream) {
  const int size = ElementBytes(spec);
  for (const CopyPiece& piece : pieces) {
    if (args.outputs[piece.output] == nullptr) continue;
    const auto* from =
        static_cast<const std::byte*>(args.inputs[piece.input]) + piece.source_offset * size;
    auto* to = static_cast<std::byte*>(args.outputs[piece.output]) + piece.target_offset * size;
    RETURN_IF_ERROR(Launched(spec, LaunchCopy(stream.handle(), piece.box, size, from, to)));
  }
  return absl::OkStatus();
}

KernelOr MakeCopies(const KernelSpec& spec, Stream& stream, std::vector<CopyPiece> pieces) {
  return MakeKernel(spec, stream,
                    [spec, pieces = std::move(pieces)](const KernelArgs& args, CudaStream& to) {
                      return LaunchPieces(spec, pieces, args, to);
                    });
}

absl::StatusOr<std::vector<CopyPiece>> PlanParts(const TileDesc& tile, int axis,
                                                 absl::Span<const int64_t> sizes, bool to_parts,
                                                 absl::Span<const int64_t> starts) {
  std::vector<CopyPiece> pieces;
  const Shape tile_strides = RowMajorStrides(tile.shape);
  int64_t tile_offset = 0;
  int64_t part_offset = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i < starts.size()) tile_offset = starts[i] * tile_strides[axis];
    Shape shape = tile.shape;
    shape[axis] = sizes[i];
    const Shape strides = RowMajorStrides(shape);
    CopyPiece& piece = pieces.emplace_back();
    ASSIGN_OR_RETURN(piece.box, to_parts ? PlanBox(shape, tile_strides, strides)
                                         : PlanBox(shape, strides, tile_strides));
    piece.source_offset = to_parts ? tile_offset : part_offset;
    piece.target_offset = to_parts ? part_offset : tile_offset;
    tile_offset += sizes[i] * tile_strides[axis];
    part_offset += NumElements(shape);
  }
  return pieces;
}

absl::StatusOr<int64_t> OffsetInTile(const KernelSpec& spec, const TileDesc& outer,
                                     const TileDesc& inner, int64_t microbatch) {
  if (inner.num_elements() == 0) return 0;
  int64_t offset = 0;
  int64_t stride = 1;
  for (int i = Rank(outer) - 1; i >= 0; --i) {
    const int64_t begin = TileBegin(inner, i, microbatch) - TileBegin(outer, i, microbatch);
    if (begin < 0 || begin + inner.shape[i] > outer.shape[i]) {
      return absl::InternalError(StrCat(spec.op, ": the tile ", ToString(inner.shape), " at ",
                                        begin, " of dimension ", i, " is not inside a tile of ",
                                        ToString(outer.shape)));
    }
    offset += begin * stride;
    stride *= outer.shape[i];
  }
  return offset;
}

}  // namespace penstock::kernels::cuda
