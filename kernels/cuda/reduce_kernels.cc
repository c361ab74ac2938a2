// Kernels that fold many elements into each result.

#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/embedding_grad.h"
#include "kernels/cuda/reduce.h"

namespace penstock::kernels::cuda {
namespace {

// Loops over the tile with the axes in `is_reduced` folded; neighbours of one kind are joined.
absl::StatusOr<ReduceLoops> LoopsOf(const KernelSpec& spec, const std::vector<bool>& is_reduced) {
  const TileDesc& x = spec.inputs[0];
  if (Rank(x) > kMaxReduceDims) {
    return absl::UnimplementedError(StrCat("the cuda kernel for ", spec.op, " takes at most ",
                                           kMaxReduceDims, " dimensions, not ", Rank(x)));
  }
  ReduceLoops loops;
  const Shape strides = RowMajorStrides(x.shape);
  int last = -1;  // 0: a kept one, 1: a reduced one
  for (int i = 0; i < Rank(x); ++i) {
    if (x.shape[i] == 1) continue;
    const bool reduced = is_reduced[i];
    int32_t& rank = reduced ? loops.reduced_rank : loops.kept_rank;
    int64_t* sizes = reduced ? loops.reduced_sizes : loops.kept_sizes;
    int64_t* of_dims = reduced ? loops.reduced_strides : loops.kept_strides;
    if (last == (reduced ? 1 : 0)) {
      sizes[rank - 1] *= x.shape[i];
      of_dims[rank - 1] = strides[i];
    } else {
      sizes[rank] = x.shape[i];
      of_dims[rank] = strides[i];
      ++rank;
    }
    last = reduced ? 1 : 0;
  }
  return loops;
}

std::vector<bool> ReducedAxes(const KernelSpec& spec) {
  const int rank = Rank(spec.inputs[0]);
  std::vector<bool> is_reduced(rank, false);
  for (const int64_t axis : spec.attributes.GetInts("axes")) {
    is_reduced[NormalizeAxis(axis, rank)] = true;
  }
  return is_reduced;
}

// The last one.
std::vector<bool> LastAxis(const KernelSpec& spec) {
  std::vector<bool> is_reduced(Rank(spec.inputs[0]), false);
  if (!is_reduced.empty()) is_reduced.back() = true;
  return is_reduced;
}
using AxesOf = std::vector<bool> (*)(const KernelSpec&);

size_t WorkspaceBytes(const KernelSpec& spec, AxesOf axes_of) {
  const absl::StatusOr<ReduceLoops> loops = LoopsOf(spec, axes_of(spec));
  // Floats of 16 bits are added up in f32.
  const size_t element_bytes = std::max(sizeof(float), ByteSize(spec.inputs[0].dtype));
  return loops.ok() ? ReduceWorkspaceBytes(*loops, element_bytes) : 0;
}

// Elements behind one result, over all tiles.
int64_t GlobalCount(const KernelSpec& spec) {
  const std::vector<bool> is_reduced = ReducedAxes(spec);
  int64_t count = 1;
  for (int i = 0; i < Rank(spec.inputs[0]); ++i) {
    if (is_reduced[i]) count *= GlobalExtent(spec.inputs[0], i);
  }
  return count;
}

template <typename Types>
KernelOr CreateReduce(FoldOp op, double divisor, const KernelSpec& spec, Stream& stream) {
  ASSIGN_OR_RETURN(const ReduceLoops loops, LoopsOf(spec, ReducedAxes(spec)));
  return WithResultType(
      Types(), spec, [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) {
        return MakeKernel(
            spec, stream, [spec, op, divisor, loops](const KernelArgs& args, CudaStream& to) {
              const ReduceResult result = {divisor, AddsToResults(spec, args)};
              return Launched(spec, LaunchReduce(to.handle(), op, loops, result, Input<T>(args, 0),
                                                 Output<R>(args, 0), args.workspace));
            });
      });
}

size_t AxesWorkspaceBytes(const KernelSpec& spec, int) { return WorkspaceBytes(spec, ReducedAxes); }

KernelDef ReduceSumDef() {
  return {.workspace_bytes = AxesWorkspaceBytes,
          .create =
              [](const KernelSpec& spec, Device&, Stream& stream) {
                return CreateReduce<DeviceNumbers>(FoldOp::kSum, 1, spec, stream);
              },
          .supports_accumulate = true};
}

// The mean of nothing is NaN, as in NumPy and PyTorch.
KernelDef ReduceMeanDef() {
  return {.workspace_bytes = AxesWorkspaceBytes,
          .create =
              [](const KernelSpec& spec, Device&, Stream& stream) {
                return CreateReduce<AllFloats>(FoldOp::kSum, static_cast<double>(GlobalCount(spec)),
                                               spec, stream);
              },
          .supports_accumulate = true};
}

KernelDef ReduceMaxDef() {
  return {.workspace_bytes = AxesWorkspaceBytes,
          .create = [](const KernelSpec& spec, Device&, Stream& stream) {
            return CreateReduce<DeviceNumbers>(FoldOp::kMax, 1, spec, stream);
          }};
}

KernelOr CreateSumExp(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const ReduceLoops loops, LoopsOf(spec, LastAxis(spec)));
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, loops](const KernelArgs& args, CudaStream& to) {
      const ReduceResult result = {1, AddsToResults(spec, args)};
      return Launched(spec,
                      LaunchSumExp(to.handle(), loops, result, Input<T>(args, 0), Input<T>(args, 1),
                                   Output<float>(args, 0), args.workspace));
    });
  });
}

// layer_norm_weight_grad (dy, x, mean, rstd) -> dscale, dbias; rms_norm_weight_grad (dy, x, rstd)
// -> dscale.
template <bool kHasBias>
KernelOr CreateNormWeightGrad(const KernelSpec& spec, Device&, Stream& stream) {
  return WithResultType(
      DeviceFloats(), spec,
      [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) {
        return MakeKernel(
            spec, stream,
            [spec, rows = RowsOf(spec.inputs[0])](const KernelArgs& args, CudaStream& to) {
              const ReduceResult result = {1, AddsToResults(spec, args)};
              const float* mean = kHasBias ? Input<float>(args, 2) : nullptr;
              const float* rstd = Input<float>(args, kHasBias ? 3 : 2);
              R* dbias = kHasBias ? Output<R>(args, 1) : nullptr;
              return Launched(spec,
                              LaunchNormWeightGrad(to.handle(), rows.count, rows.size, result,
                                                   Input<T>(args, 0), Input<T>(args, 1), mean, rstd,
                                                   Output<R>(args, 0), dbias, args.workspace));
            });
      });
}

template <bool kHasBias>
KernelDef NormWeightGradDef() {
  return {.workspace_bytes =
              [](const KernelSpec& spec, int) {
                const Rows rows = RowsOf(spec.inputs[0]);
                return NormWeightGradWorkspaceBytes(rows.count, rows.size, kHasBias);
              },
          .create = CreateNormWeightGrad<kHasBias>,
          .supports_accumulate = true};
}

KernelOr CreateEmbeddingGrad(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& table = spec.outputs[0];
  EmbeddingGradParams params;
  params.count = spec.inputs[1].num_elements();
  params.rows = table.shape[0];
  params.width = table.shape[1];
  params.limit = GlobalExtent(table, 0);
  ASSIGN_OR_RETURN(params.ids.type, IndexType(spec, 1));
  return WithResultType(
      AllFloats(), spec, [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) {
        return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
          EmbeddingGradParams run = params;
          run.first = TileBegin(spec.outputs[0], 0, args.microbatch);
          run.adds = AddsToResults(spec, args);
          run.ids.data = args.inputs[1];
          run.site = SiteOf(args, to);
          return Launched(spec, LaunchEmbeddingGrad(to.handle(), run, Input<T>(args, 0),
                                                    Output<R>(args, 0), args.workspace));
        });
      });
}

template <AxesOf kAxesOf>
KernelDef SumDef(KernelOr (*create)(const KernelSpec&, Device&, Stream&)) {
  return {
      .workspace_bytes = [](const KernelSpec& spec, int) { return WorkspaceBytes(spec, kAxesOf); },
      .create = create,
      .supports_accumulate = true};
}

}  // namespace

void AddReduceKernels(KernelRegistry* registry) {
  AddKernel(registry, "reduce_sum", ReduceSumDef());
  AddKernel(registry, "reduce_mean", ReduceMeanDef());
  AddKernel(registry, "reduce_max", ReduceMaxDef());
  AddKernel(registry, "sum_exp", SumDef<LastAxis>(CreateSumExp));
  AddKernel(registry, "layer_norm_weight_grad", NormWeightGradDef<true>());
  AddKernel(registry, "rms_norm_weight_grad", NormWeightGradDef<false>());
  AddKernel(registry, "embedding_grad",
            {.workspace_bytes =
                 [](const KernelSpec& spec, int) {
                   return EmbeddingGradWorkspaceBytes(spec.outputs[0].shape[0],
                                                      spec.inputs[1].num_elements());
                 },
             .create = CreateEmbeddingGrad,
             .supports_accumulate = true});
}

}  // namespace penstock::kernels::cuda
