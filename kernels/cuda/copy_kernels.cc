// Kernels of operators that move elements: shapes, gathers by index.

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/copies.h"
#include "kernels/cuda/copy_plan.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/elementwise.h"

namespace penstock::kernels::cuda {
namespace {

KernelDef MoveDef(CopyKind kind) {
  return {.create =
              [kind](const KernelSpec& spec, Device&, Stream& stream) {
                return MakeKernel(
                    spec, stream, [spec, kind](const KernelArgs& args, CudaStream& to) {
                      if (args.inputs[0] != args.outputs[0]) {
                        to.Copy(args.outputs[0], args.inputs[0], spec.outputs[0].num_bytes(), kind);
                      }
                      return absl::OkStatus();
                    });
              },
          .can_alias =
              [](const KernelSpec& spec, int input) {
                return spec.inputs[input].num_bytes() == spec.outputs[0].num_bytes();
              }};
}

KernelOr CreateTranspose(const KernelSpec& spec, Device&, Stream& stream) {
  const Shape input_strides = RowMajorStrides(spec.inputs[0].shape);
  Shape strides;
  for (const int64_t dim : spec.attributes.GetInts("permutation")) {
    strides.push_back(input_strides[dim]);
  }
  std::vector<CopyPiece> pieces(1);
  ASSIGN_OR_RETURN(pieces[0].box,
                   PlanBox(spec.outputs[0].shape, strides, RowMajorStrides(spec.outputs[0].shape)));
  return MakeCopies(spec, stream, std::move(pieces));
}

KernelOr CreateBroadcast(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& x = spec.inputs[0];
  const Shape axes = spec.attributes.GetInts("axes");
  const Shape input_strides = RowMajorStrides(x.shape);
  Shape strides(spec.outputs[0].shape.size(), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (x.shape[i] == spec.outputs[0].shape[axes[i]]) strides[axes[i]] = input_strides[i];
  }
  std::vector<CopyPiece> pieces(1);
  ASSIGN_OR_RETURN(pieces[0].box,
                   PlanBox(spec.outputs[0].shape, strides, RowMajorStrides(spec.outputs[0].shape)));
  return MakeCopies(spec, stream, std::move(pieces));
}

// The operand's tile holds at least what the result's reads; both say where they lie.
KernelOr CreateSlice(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& x = spec.inputs[0];
  const TileDesc& y = spec.outputs[0];
  const Shape start = spec.attributes.GetInts("start");
  const Shape step = spec.attributes.GetInts("stride");
  Shape strides = RowMajorStrides(x.shape);
  bool is_inside = true;
  CopyPiece piece;
  for (int i = 0; i < Rank(y) && y.num_elements() > 0; ++i) {
    const int64_t stride = step.empty() ? 1 : step[i];
    const int64_t first = TileBegin(y, i, 0) * stride + start[i] - TileBegin(x, i, 0);
    is_inside = is_inside && first >= 0 && first + (y.shape[i] - 1) * stride < x.shape[i];
    piece.source_offset += first * strides[i];
  }
  for (size_t i = 0; i < step.size(); ++i) strides[i] *= step[i];
  if (!is_inside) {
    return MakeKernel(spec, stream, [](const KernelArgs&, CudaStream&) {
      return absl::InternalError("slice: the operand's tile does not hold what the result reads");
    });
  }
  ASSIGN_OR_RETURN(piece.box, PlanBox(y.shape, strides, RowMajorStrides(y.shape)));
  return MakeCopies(spec, stream, {piece});
}

// Of the operand's tile, what lies in the result's is copied; both say where they lie.
KernelOr CreatePad(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& x = spec.inputs[0];
  const TileDesc& y = spec.outputs[0];
  const Shape low = spec.attributes.GetInts("low");
  const Shape x_strides = RowMajorStrides(x.shape);
  const Shape y_strides = RowMajorStrides(y.shape);
  Shape shape;
  CopyPiece piece;
  for (int i = 0; i < Rank(x); ++i) {
    // Where the result's tile begins in the operand.
    const int64_t y_begin = TileBegin(y, i, 0) - low[i];
    const int64_t x_begin = TileBegin(x, i, 0);
    const int64_t begin = std::max(x_begin, y_begin);
    const int64_t end = std::min(x_begin + x.shape[i], y_begin + y.shape[i]);
    shape.push_back(std::max<int64_t>(end - begin, 0));
    piece.source_offset += (begin - x_begin) * x_strides[i];
    piece.target_offset += (begin - y_begin) * y_strides[i];
  }
  std::vector<CopyPiece> pieces;
  if (NumElements(shape) > 0) {
    ASSIGN_OR_RETURN(piece.box, PlanBox(shape, x_strides, y_strides));
    pieces.push_back(piece);
  }
  return MakeKernel(spec, stream, [spec, pieces](const KernelArgs& args, CudaStream& to) {
    // The element 0 is all zero bits in every dtype.
    to.Zero(args.outputs[0], spec.outputs[0].num_bytes());
    return LaunchPieces(spec, pieces, args, to);
  });
}

// Of the operands' tiles, what lies in the result's is copied; all say where they lie.
KernelOr CreateConcat(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& y = spec.outputs[0];
  const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(y));
  const Shape strides = RowMajorStrides(y.shape);
  const int64_t y_begin = TileBegin(y, axis, 0);
  int64_t start = 0;  // of the operand in the whole result
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const TileDesc& x = spec.inputs[i];
    const Shape x_strides = RowMajorStrides(x.shape);
    const int64_t x_begin = start + TileBegin(x, axis, 0);
    const int64_t begin = std::max(x_begin, y_begin);
    const int64_t end = std::min(x_begin + x.shape[axis], y_begin + y.shape[axis]);
    start += GlobalExtent(x, axis);
    if (begin >= end) continue;
    Shape shape = x.shape;
    shape[axis] = end - begin;
    CopyPiece& piece = pieces.emplace_back();
    ASSIGN_OR_RETURN(piece.box, PlanBox(shape, x_strides, strides));
    piece.input = static_cast<int>(i);
    piece.source_offset = (begin - x_begin) * x_strides[axis];
    piece.target_offset = (begin - y_begin) * strides[axis];
  }
  return MakeCopies(spec, stream, std::move(pieces));
}

KernelOr CreateSplit(const KernelSpec& spec, Device&, Stream& stream) {
  const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(spec.inputs[0]));
  const Shape strides = RowMajorStrides(spec.inputs[0].shape);
  int64_t offset = 0;
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    const TileDesc& output = spec.outputs[i];
    CopyPiece& piece = pieces.emplace_back();
    ASSIGN_OR_RETURN(piece.box, PlanBox(output.shape, strides, RowMajorStrides(output.shape)));
    piece.output = static_cast<int>(i);
    piece.source_offset = offset;
    offset += output.shape[axis] * strides[axis];
  }
  return MakeCopies(spec, stream, std::move(pieces));
}

// The elements before the shift's end come from the end of the operand; the others follow.
KernelOr CreateRoll(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& tile = spec.inputs[0];
  const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(tile));
  const int64_t extent = GlobalExtent(tile, axis);
  const int64_t shift = spec.attributes.GetInt("shift", 0);
  const int64_t first = extent == 0 ? 0 : (shift % extent + extent) % extent;
  if (first != 0 && tile.shape[axis] != extent) {
    return MakeKernel(spec, stream, [axis](const KernelArgs&, CudaStream&) {
      return absl::InternalError(
          StrCat("roll: axis ", axis, " is split, and its parts do not come as messages"));
    });
  }
  const Shape strides = RowMajorStrides(tile.shape);
  std::vector<CopyPiece> pieces;
  for (const bool wraps : {false, true}) {
    Shape shape = tile.shape;
    shape[axis] = wraps ? first : tile.shape[axis] - first;
    if (NumElements(shape) == 0) continue;
    CopyPiece& piece = pieces.emplace_back();
    ASSIGN_OR_RETURN(piece.box, PlanBox(shape, strides, strides));
    piece.source_offset = wraps ? (tile.shape[axis] - first) * strides[axis] : 0;
    piece.target_offset = wraps ? 0 : first * strides[axis];
  }
  return MakeCopies(spec, stream, std::move(pieces));
}

absl::StatusOr<Window> WindowOf(const TileDesc& whole, const TileDesc& part, bool is_in_source) {
  if (Rank(whole) > kMaxBoxDims) {
    return absl::UnimplementedError(StrCat("cuda kernels take windows of at most ", kMaxBoxDims,
                                           " dimensions, not ", Rank(whole)));
  }
  Window window;
  window.rank = Rank(whole);
  window.is_in_source = is_in_source;
  for (int i = 0; i < window.rank; ++i) {
    window.whole[i] = whole.shape[i];
    window.window[i] = part.shape[i];
  }
  return window;
}

KernelOr CreateDynamicSlice(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& x = spec.inputs[0];
  const TileDesc& y = spec.outputs[0];
  ASSIGN_OR_RETURN(const Box box,
                   PlanBox(y.shape, RowMajorStrides(x.shape), RowMajorStrides(y.shape)));
  ASSIGN_OR_RETURN(const Window window, WindowOf(x, y, /*is_in_source=*/true));
  return MakeKernel(spec, stream, [spec, box, window](const KernelArgs& args, CudaStream& to) {
    Window run = window;
    run.start = Input<int64_t>(args, 1);
    return Launched(spec, LaunchWindowCopy(to.handle(), box, run, ElementBytes(spec),
                                           args.inputs[0], args.outputs[0]));
  });
}

KernelOr CreateDynamicUpdateSlice(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& update = spec.inputs[1];
  const TileDesc& y = spec.outputs[0];
  ASSIGN_OR_RETURN(const Box box,
                   PlanBox(update.shape, RowMajorStrides(update.shape), RowMajorStrides(y.shape)));
  ASSIGN_OR_RETURN(const Window window, WindowOf(y, update, /*is_in_source=*/false));
  return MakeKernel(spec, stream, [spec, box, window](const KernelArgs& args, CudaStream& to) {
    if (args.inputs[0] != args.outputs[0]) {
      to.Copy(args.outputs[0], args.inputs[0], spec.outputs[0].num_bytes(),
              CopyKind::kDeviceToDevice);
    }
    Window run = window;
    run.start = Input<int64_t>(args, 2);
    return Launched(spec, LaunchWindowCopy(to.handle(), box, run, ElementBytes(spec),
                                           args.inputs[1], args.outputs[0]));
  });
}

KernelOr CreateEmbedding(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& table = spec.inputs[0];
  EmbeddingParams params;
  params.count = spec.inputs[1].num_elements();
  params.row_bytes = table.shape[1] * ElementBytes(spec);
  params.rows = table.shape[0];
  params.limit = GlobalExtent(table, 0);
  ASSIGN_OR_RETURN(params.ids.type, IndexType(spec, 1));
  return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
    EmbeddingParams run = params;
    run.first = TileBegin(spec.inputs[0], 0, args.microbatch);
    run.ids.data = args.inputs[1];
    run.site = SiteOf(args, to);
    return Launched(spec, LaunchEmbedding(to.handle(), run, args.inputs[0], args.outputs[0]));
  });
}

KernelOr CreatePick(const KernelSpec& spec, Device&, Stream& stream) {
  const Rows rows = RowsOf(spec.inputs[0]);
  PickParams params;
  params.rows = rows.count;
  params.row_size = rows.size;
  params.limit = GlobalExtent(spec.inputs[0], Rank(spec.inputs[0]) - 1);
  ASSIGN_OR_RETURN(params.index.type, IndexType(spec, 1));
  return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
    PickParams run = params;
    run.first = TileBegin(spec.inputs[0], Rank(spec.inputs[0]) - 1, args.microbatch);
    run.index.data = args.inputs[1];
    run.site = SiteOf(args, to);
    return Launched(
        spec, LaunchPick(to.handle(), run, ElementBytes(spec), args.inputs[0], args.outputs[0]));
  });
}

}  // namespace

void AddCopyKernels(KernelRegistry* registry) {
  AddKernel(registry, "copy", MoveDef(CopyKind::kDeviceToDevice));
  AddKernel(registry, "reshape", MoveDef(CopyKind::kDeviceToDevice));
  AddKernel(registry, "to_host", MoveDef(CopyKind::kDeviceToHost));
  AddKernel(registry, "to_device", MoveDef(CopyKind::kHostToDevice));
  AddKernel(registry, "transpose", {.create = CreateTranspose});
  AddKernel(registry, "broadcast", {.create = CreateBroadcast});
  AddKernel(registry, "slice", {.create = CreateSlice});
  AddKernel(registry, "pad", {.create = CreatePad});
  AddKernel(registry, "concat", {.create = CreateConcat});
  AddKernel(registry, "split", {.create = CreateSplit});
  AddKernel(registry, "roll", {.create = CreateRoll});
  AddKernel(registry, "dynamic_slice", {.create = CreateDynamicSlice});
  AddKernel(registry, "dynamic_update_slice",
            {.create = CreateDynamicUpdateSlice, .can_alias = CanAliasFirst});
  AddKernel(registry, "embedding", {.create = CreateEmbedding});
  AddKernel(registry, "pick", {.create = CreatePick});
}

}  // namespace penstock::kernels::cuda
