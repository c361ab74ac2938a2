// Kernels of convolutions, poolings and batch normalization.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/status_macros.h"
#include "graph/image_window.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/contraction_plan.h"
#include "kernels/cuda/convolution_library.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/images.h"

namespace penstock::kernels::cuda {
namespace {

WindowAxis AxisOf(const graph::ImageAxis& axis, int64_t in, int64_t out) {
  return {.in = in,
          .out = out,
          .taps = axis.taps,
          .stride = axis.stride,
          .low = axis.low,
          .dilation = axis.dilation};
}

ConvolutionShape ConvolutionOf(const KernelSpec& spec, const TileDesc& x, const TileDesc& w,
                               const TileDesc& y) {
  const graph::ImageWindow window = graph::ImageWindowOf(spec.attributes, {w.shape[2], w.shape[3]});
  ConvolutionShape shape;
  shape.n = x.shape[0];
  shape.c = w.shape[1];
  // Of a tile: groups may be split.
  shape.groups = shape.c > 0 ? x.shape[1] / shape.c : 1;
  shape.o = shape.groups > 0 ? w.shape[0] / shape.groups : 0;
  shape.rows = AxisOf(window[0], x.shape[2], y.shape[2]);
  shape.columns = AxisOf(window[1], x.shape[3], y.shape[3]);
  return shape;
}

// The convolution by the library of the device; null where it has none for the spec.
absl::StatusOr<std::shared_ptr<LibraryConvolution>> FindInLibrary(const KernelSpec& spec,
                                                                  Device& device, Stream& stream,
                                                                  ConvolutionPass pass,
                                                                  const ConvolutionShape& shape) {
  auto* const cuda_device = dynamic_cast<CudaDevice*>(&device);
  auto* const cuda_stream = dynamic_cast<CudaStream*>(&stream);
  const DType dtype = spec.outputs[0].dtype;
  if (cuda_device == nullptr || cuda_stream == nullptr || !IsForLibrary(shape)) return nullptr;
  if (spec.inputs[0].dtype != dtype || spec.inputs[1].dtype != dtype) return nullptr;
  ConvolutionLibrary* const library = cuda_device->convolutions();
  if (library == nullptr) return nullptr;
  ASSIGN_OR_RETURN(std::unique_ptr<LibraryConvolution> found,
                   library->Create(cuda_stream->handle(), pass, shape, dtype));
  return std::shared_ptr<LibraryConvolution>(std::move(found));
}

KernelOr MakeLibraryKernel(const KernelSpec& spec, Stream& stream,
                           const std::shared_ptr<LibraryConvolution>& convolution) {
  return MakeKernel(spec, stream, [spec, convolution](const KernelArgs& args, CudaStream& to) {
    to.handle();  // makes its device current
    static_assert(kConvolutionAlignment == kBlasWorkspaceAlignment);
    return convolution->Run(args.inputs[0], args.inputs[1], args.outputs[0],
                            AddsToResults(spec, args), AlignedWorkspace(args.workspace));
  });
}

// Reserved for every convolution: plans are made before it is known whether cuDNN can be loaded.
size_t ConvolutionWorkspace(const KernelSpec&, int) {
  return kConvolutionWorkspaceBytes + kConvolutionAlignment;
}

// By the library, or by `launch`, a kernel of this folder, for the type of the operands.
template <typename Launch>
KernelOr CreateConvolution(const KernelSpec& spec, Device& device, Stream& stream,
                           ConvolutionPass pass, const ConvolutionShape& shape, Launch launch) {
  ASSIGN_OR_RETURN(const auto library, FindInLibrary(spec, device, stream, pass, shape));
  if (library != nullptr) return MakeLibraryKernel(spec, stream, library);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T> type) {
    return MakeKernel(spec, stream, [spec, launch, type](const KernelArgs& args, CudaStream& to) {
      return Launched(spec, launch(type, args, to.handle()));
    });
  });
}

KernelOr CreateConv2d(const KernelSpec& spec, Device& device, Stream& stream) {
  const ConvolutionShape shape =
      ConvolutionOf(spec, spec.inputs[0], spec.inputs[1], spec.outputs[0]);
  return CreateConvolution(
      spec, device, stream, ConvolutionPass::kForward, shape,
      [shape]<typename T>(std::type_identity<T>, const KernelArgs& args, StreamHandle to) {
        return LaunchConvolution(to, shape, Input<T>(args, 0), Input<T>(args, 1),
                                 Output<T>(args, 0));
      });
}

KernelOr CreateConv2dInputGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  const ConvolutionShape shape =
      ConvolutionOf(spec, spec.outputs[0], spec.inputs[0], spec.inputs[1]);
  return CreateConvolution(
      spec, device, stream, ConvolutionPass::kInputGrad, shape,
      [shape]<typename T>(std::type_identity<T>, const KernelArgs& args, StreamHandle to) {
        return LaunchConvolutionInputGrad(to, shape, Input<T>(args, 0), Input<T>(args, 1),
                                          Output<T>(args, 0));
      });
}

// The library writes gradients of weights in the type of the operands only: where those have 16
// bits, its result is rounded once, and then widened.
bool WidensWeightGrad(const KernelSpec& spec) {
  return spec.outputs[0].dtype == DType::kF32 && IsHalf(spec.inputs[0].dtype);
}

size_t WeightGradWorkspace(const KernelSpec& spec, int num_threads) {
  const size_t narrow = WidensWeightGrad(spec) ? spec.outputs[0].num_bytes() / 2 : 0;
  return ConvolutionWorkspace(spec, num_threads) + narrow;
}

template <typename T>
KernelOr MakeWideningKernel(const KernelSpec& spec, Stream& stream,
                            const std::shared_ptr<LibraryConvolution>& convolution) {
  return MakeKernel(spec, stream, [spec, convolution](const KernelArgs& args, CudaStream& to) {
    to.handle();  // makes its device current
    auto* const workspace = static_cast<std::byte*>(AlignedWorkspace(args.workspace));
    auto* const narrow = reinterpret_cast<T*>(workspace + kConvolutionWorkspaceBytes);
    RETURN_IF_ERROR(convolution->Run(args.inputs[0], args.inputs[1], narrow, false, workspace));
    return Launched(spec, LaunchWidenWeightGrad(to.handle(), spec.outputs[0].num_elements(), narrow,
                                                AddsToResults(spec, args), Output<float>(args, 0)));
  });
}

KernelOr CreateConv2dWeightGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  const ConvolutionShape shape =
      ConvolutionOf(spec, spec.inputs[0], spec.outputs[0], spec.inputs[1]);
  KernelSpec asked = spec;
  if (WidensWeightGrad(spec)) asked.outputs[0].dtype = spec.inputs[0].dtype;
  ASSIGN_OR_RETURN(const auto library,
                   FindInLibrary(asked, device, stream, ConvolutionPass::kWeightGrad, shape));
  return WithResultType(
      DeviceFloats(), spec,
      [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) -> KernelOr {
        if (library != nullptr) {
          if constexpr (!std::is_same_v<T, R>) return MakeWideningKernel<T>(spec, stream, library);
          return MakeLibraryKernel(spec, stream, library);
        }
        return MakeKernel(spec, stream, [spec, shape](const KernelArgs& args, CudaStream& to) {
          return Launched(spec, LaunchConvolutionWeightGrad(
                                    to.handle(), shape, Input<T>(args, 0), Input<T>(args, 1),
                                    AddsToResults(spec, args), Output<R>(args, 0)));
        });
      });
}

// Between planes of x and of y. Without the attribute `window` it is the whole plane.
PoolingShape PoolingOf(const KernelSpec& spec, const TileDesc& x, const TileDesc& y) {
  const Shape given = spec.attributes.GetInts("window");
  const std::array<int64_t, 2> taps = given.size() == 2
                                          ? std::array<int64_t, 2>{given[0], given[1]}
                                          : std::array<int64_t, 2>{x.shape[2], x.shape[3]};
  const graph::ImageWindow window = graph::ImageWindowOf(spec.attributes, taps, taps);
  return {.planes = x.shape[0] * x.shape[1],
          .rows = AxisOf(window[0], x.shape[2], y.shape[2]),
          .columns = AxisOf(window[1], x.shape[3], y.shape[3])};
}

KernelOr CreateMaxPool(const KernelSpec& spec, Device&, Stream& stream) {
  const PoolingShape shape = PoolingOf(spec, spec.inputs[0], spec.outputs[0]);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, shape](const KernelArgs& args, CudaStream& to) {
      return Launched(spec,
                      LaunchMaxPool(to.handle(), shape, Input<T>(args, 0), Output<T>(args, 0)));
    });
  });
}
KernelOr CreateAvgPool(const KernelSpec& spec, Device&, Stream& stream) {
  const PoolingShape shape = PoolingOf(spec, spec.inputs[0], spec.outputs[0]);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, shape](const KernelArgs& args, CudaStream& to) {
      return Launched(spec,
                      LaunchAvgPool(to.handle(), shape, Input<T>(args, 0), Output<T>(args, 0)));
    });
  });
}
KernelOr CreateAvgPoolGrad(const KernelSpec& spec, Device&, Stream& stream) {
  const PoolingShape shape = PoolingOf(spec, spec.outputs[0], spec.inputs[0]);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, shape](const KernelArgs& args, CudaStream& to) {
      return Launched(spec,
                      LaunchAvgPoolGrad(to.handle(), shape, Input<T>(args, 0), Output<T>(args, 0)));
    });
  });
}
KernelOr CreateMaxPoolGrad(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream,
                      [spec, shape = PoolingOf(spec, spec.inputs[0], spec.inputs[1])](
                          const KernelArgs& args, CudaStream& to) {
                        return Launched(spec,
                                        LaunchMaxPoolGrad(to.handle(), shape, Input<T>(args, 0),
                                                          Input<T>(args, 1), Output<T>(args, 0)));
                      });
  });
}

ChannelShape ChannelsOf(const KernelSpec& spec) {
  const TileDesc& x = spec.inputs[0];
  ChannelShape shape;
  shape.n = x.shape[0];
  shape.channels = x.shape[1];
  int64_t count = GlobalExtent(x, 0);
  for (int dim = 2; dim < Rank(x); ++dim) {
    shape.size *= x.shape[dim];
    count *= GlobalExtent(x, dim);
  }
  shape.count = static_cast<float>(count);
  shape.epsilon = static_cast<float>(spec.attributes.GetDouble("epsilon", 1e-5));
  return shape;
}

KernelOr CreateBatchNorm(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, shape = ChannelsOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(spec, LaunchBatchNorm(to.handle(), shape, Input<T>(args, 0),
                                                Input<T>(args, 1), Input<T>(args, 2),
                                                Output<T>(args, 0), OptionalOutput<float>(args, 1),
                                                OptionalOutput<float>(args, 2)));
        });
  });
}

KernelOr CreateBatchNormInference(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, shape = ChannelsOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(
              spec, LaunchBatchNormInference(
                        to.handle(), shape, Input<T>(args, 0), Input<T>(args, 1), Input<T>(args, 2),
                        Input<float>(args, 3), Input<float>(args, 4), Output<T>(args, 0)));
        });
  });
}

KernelOr CreateBatchNormGrad(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, shape = ChannelsOf(spec)](const KernelArgs& args, CudaStream& to) {
          const BatchNormGradOperands<T> x = {.dy = Input<T>(args, 0),
                                              .x = Input<T>(args, 1),
                                              .scale = Input<T>(args, 2),
                                              .mean = Input<float>(args, 3),
                                              .variance = Input<float>(args, 4),
                                              .dscale = Input<float>(args, 5),
                                              .dbias = Input<float>(args, 6)};
          return Launched(spec, LaunchBatchNormGrad(to.handle(), shape, x, Output<T>(args, 0)));
        });
  });
}

bool CanAliasGrad(const KernelSpec& spec, int input) {
  return input <= 1 && CanAliasElementwise(spec, input);
}

KernelOr CreateBatchNormWeightGrad(const KernelSpec& spec, Device&, Stream& stream) {
  return WithResultType(
      DeviceFloats(), spec,
      [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) {
        return MakeKernel(
            spec, stream, [spec, shape = ChannelsOf(spec)](const KernelArgs& args, CudaStream& to) {
              return Launched(
                  spec, LaunchBatchNormWeightGrad(to.handle(), shape, Input<T>(args, 0),
                                                  Input<T>(args, 1), Input<float>(args, 2),
                                                  Input<float>(args, 3), AddsToResults(spec, args),
                                                  Output<R>(args, 0), Output<R>(args, 1)));
            });
      });
}

KernelOr CreateChannelVariance(const KernelSpec& spec, Device&, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, shape = ChannelsOf(spec)](const KernelArgs& args, CudaStream& to) {
          return Launched(spec, LaunchChannelVariance(
                                    to.handle(), shape, Input<T>(args, 0), Input<float>(args, 1),
                                    AddsToResults(spec, args), Output<float>(args, 0)));
        });
  });
}

}  // namespace

void AddImageKernels(KernelRegistry* registry) {
  AddKernel(registry, "conv2d", {.workspace_bytes = ConvolutionWorkspace, .create = CreateConv2d});
  AddKernel(registry, "conv2d_input_grad",
            {.workspace_bytes = ConvolutionWorkspace, .create = CreateConv2dInputGrad});
  AddKernel(registry, "conv2d_weight_grad",
            {.workspace_bytes = WeightGradWorkspace,
             .create = CreateConv2dWeightGrad,
             .supports_accumulate = true});
  AddKernel(registry, "max_pool2d", {.create = CreateMaxPool});
  AddKernel(registry, "max_pool2d_grad", {.create = CreateMaxPoolGrad});
  AddKernel(registry, "avg_pool2d", {.create = CreateAvgPool});
  AddKernel(registry, "avg_pool2d_grad", {.create = CreateAvgPoolGrad});
  AddKernel(registry, "batch_norm", {.create = CreateBatchNorm, .can_alias = CanAliasFirst});
  AddKernel(registry, "batch_norm_inference",
            {.create = CreateBatchNormInference, .can_alias = CanAliasFirst});
  AddKernel(registry, "batch_norm_grad",
            {.create = CreateBatchNormGrad, .can_alias = CanAliasGrad});
  AddKernel(registry, "batch_norm_weight_grad",
            {.create = CreateBatchNormWeightGrad, .supports_accumulate = true});
  AddKernel(registry, "channel_variance",
            {.create = CreateChannelVariance, .supports_accumulate = true});
}

}  // namespace penstock::kernels::cuda
