// Kernels that normalise rows.

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/rows.h"

namespace penstock::kernels::cuda {
namespace {

RowShape ShapeOf(const KernelSpec& spec) {
  const TileDesc& tile = spec.inputs[0];
  const int axis = NormalizeAxis(spec.attributes.GetInt("axis", -1), Rank(tile));
  RowShape shape;
  for (int i = 0; i < Rank(tile); ++i) {
    (i < axis ? shape.outer : i == axis ? shape.size : shape.inner) *= tile.shape[i];
  }
  return shape;
}

KernelOr CreateSoftmax(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, shape = ShapeOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(spec,
                          LaunchSoftmax(to.handle(), shape, Input<T>(args, 0), Output<T>(args, 0)));
        });
  });
}

KernelOr CreateSoftmaxGrad(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, shape = ShapeOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(spec, LaunchSoftmaxGrad(to.handle(), shape, Input<T>(args, 0),
                                                  Input<T>(args, 1), Output<T>(args, 0)));
        });
  });
}

NormParams NormOf(const KernelSpec& spec) {
  const Rows rows = RowsOf(spec.inputs[0]);
  return {.rows = rows.count,
          .size = rows.size,
          .epsilon = static_cast<float>(spec.attributes.GetDouble("epsilon", 1e-5))};
}

KernelOr CreateLayerNorm(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, params = NormOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(spec, LaunchLayerNorm(to.handle(), params, Input<T>(args, 0),
                                                Input<T>(args, 1), Input<T>(args, 2),
                                                Output<T>(args, 0), OptionalOutput<float>(args, 1),
                                                OptionalOutput<float>(args, 2)));
        });
  });
}

KernelOr CreateRmsNorm(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, params = NormOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(spec,
                          LaunchRmsNorm(to.handle(), params, Input<T>(args, 0), Input<T>(args, 1),
                                        Output<T>(args, 0), OptionalOutput<float>(args, 1)));
        });
  });
}

// Operand i, or null where there are less.
template <typename T>
const T* OptionalInput(const KernelArgs& args, size_t i) {
  return args.inputs.size() > i ? Input<T>(args, static_cast<int>(i)) : nullptr;
}

KernelOr CreateLayerNormGrad(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, params = NormOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(
              spec, LaunchNormGrad(to.handle(), params, Input<T>(args, 0), Input<T>(args, 1),
                                   Input<T>(args, 2), Input<float>(args, 3), Input<float>(args, 4),
                                   OptionalInput<T>(args, 5), Output<T>(args, 0)));
        });
  });
}

KernelOr CreateRmsNormGrad(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, params = NormOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(spec,
                          LaunchNormGrad(to.handle(), params, Input<T>(args, 0), Input<T>(args, 1),
                                         Input<T>(args, 2), nullptr, Input<float>(args, 3),
                                         OptionalInput<T>(args, 4), Output<T>(args, 0)));
        });
  });
}

// Not the addend, which could be: on CPUs it cannot.
bool CanAliasNormGrad(const KernelSpec& spec, int input) {
  return input <= 1 && CanAliasElementwise(spec, input);
}

absl::StatusOr<CrossEntropyParams> CrossEntropyOf(const KernelSpec& spec) {
  const Rows rows = RowsOf(spec.inputs[0]);
  CrossEntropyParams params;
  params.rows = rows.count;
  params.size = rows.size;
  params.limit = GlobalExtent(spec.inputs[0], Rank(spec.inputs[0]) - 1);
  ASSIGN_OR_RETURN(params.labels.type, IndexType(spec, 1));
  return params;
}

KernelOr CreateCrossEntropy(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const CrossEntropyParams params, CrossEntropyOf(spec));
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
      CrossEntropyParams run = params;
      run.labels.data = args.inputs[1];
      run.site = SiteOf(args, to);
      return Launched(
          spec, LaunchCrossEntropy(to.handle(), run, Input<T>(args, 0), Output<float>(args, 0),
                                   OptionalOutput<float>(args, 1), OptionalOutput<float>(args, 2)));
    });
  });
}

KernelOr CreateCrossEntropyGrad(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const CrossEntropyParams params, CrossEntropyOf(spec));
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
      CrossEntropyParams run = params;
      run.first = TileBegin(spec.inputs[0], Rank(spec.inputs[0]) - 1, args.microbatch);
      run.labels.data = args.inputs[1];
      run.site = SiteOf(args, to);
      return Launched(spec, LaunchCrossEntropyGrad(to.handle(), run, Input<T>(args, 0),
                                                   Input<float>(args, 2), Input<float>(args, 3),
                                                   Input<float>(args, 4), Output<T>(args, 0)));
    });
  });
}

}  // namespace

void AddRowKernels(KernelRegistry* registry) {
  AddKernel(registry, "softmax", {.create = CreateSoftmax, .can_alias = CanAliasFirst});
  AddKernel(registry, "softmax_grad",
            {.create = CreateSoftmaxGrad, .can_alias = CanAliasElementwise});
  AddKernel(registry, "layer_norm", {.create = CreateLayerNorm, .can_alias = CanAliasFirst});
  AddKernel(registry, "layer_norm_grad",
            {.create = CreateLayerNormGrad, .can_alias = CanAliasNormGrad});
  AddKernel(registry, "rms_norm", {.create = CreateRmsNorm, .can_alias = CanAliasFirst});
  AddKernel(registry, "rms_norm_grad",
            {.create = CreateRmsNormGrad, .can_alias = CanAliasNormGrad});
  AddKernel(registry, "cross_entropy", {.create = CreateCrossEntropy});
  AddKernel(registry, "cross_entropy_grad",
            {.create = CreateCrossEntropyGrad, .can_alias = CanAliasFirst});
}

}  // namespace penstock::kernels::cuda
