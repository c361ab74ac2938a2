// Optimisers: one launch a parameter, which reads its scalars on the device.

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/optimizers.h"

namespace penstock::kernels::cuda {
namespace {

absl::StatusOr<Scalar::Type> ScalarType(const KernelSpec& spec, int input) {
  switch (spec.inputs[input].dtype) {
    case DType::kF32:
      return Scalar::kF32;
    case DType::kBF16:
      return Scalar::kBF16;
    case DType::kF16:
      return Scalar::kF16;
    default:
      return Unsupported(spec, spec.inputs[input].dtype);
  }
}

KernelOr CreateAdamw(const KernelSpec& spec, Device&, Stream& stream) {
  AdamwParams params;
  ASSIGN_OR_RETURN(params.rate.type, ScalarType(spec, 5));
  ASSIGN_OR_RETURN(params.scale.type, ScalarType(spec, 6));
  params.beta1 = spec.attributes.GetDouble("beta1", 0.9);
  params.beta2 = spec.attributes.GetDouble("beta2", 0.999);
  params.epsilon = spec.attributes.GetDouble("epsilon", 1e-8);
  params.weight_decay = spec.attributes.GetDouble("weight_decay", 0.0);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
      AdamwParams run = params;
      run.step = Input<int64_t>(args, 4);
      run.rate.data = args.inputs[5];
      run.scale.data = args.inputs[6];
      return Launched(
          spec, LaunchAdamw(to.handle(), run, spec.outputs[0].num_elements(), Input<T>(args, 0),
                            Input<T>(args, 1), Input<T>(args, 2), Input<T>(args, 3),
                            Output<T>(args, 0), Output<T>(args, 1), Output<T>(args, 2)));
    });
  });
}

KernelOr CreateSgd(const KernelSpec& spec, Device&, Stream& stream) {
  SgdParams params;
  ASSIGN_OR_RETURN(params.rate.type, ScalarType(spec, 2));
  ASSIGN_OR_RETURN(params.scale.type, ScalarType(spec, 3));
  params.momentum = static_cast<float>(spec.attributes.GetDouble("momentum", 0.0));
  params.weight_decay = static_cast<float>(spec.attributes.GetDouble("weight_decay", 0.0));
  params.is_nesterov = spec.attributes.GetBool("nesterov", false);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
      SgdParams run = params;
      run.rate.data = args.inputs[2];
      run.scale.data = args.inputs[3];
      const bool has_buffer = args.inputs.size() > 4;
      return Launched(spec,
                      LaunchSgd(to.handle(), run, spec.outputs[0].num_elements(), Input<T>(args, 0),
                                Input<T>(args, 1), has_buffer ? Input<T>(args, 4) : nullptr,
                                Output<T>(args, 0), has_buffer ? Output<T>(args, 1) : nullptr));
    });
  });
}

}  // namespace

void AddOptimizerKernels(KernelRegistry* registry) {
  AddKernel(registry, "adamw", {.create = CreateAdamw, .can_alias = CanAliasFirst});
  AddKernel(registry, "sgd", {.create = CreateSgd, .can_alias = CanAliasFirst});
}

}  // namespace penstock::kernels::cuda
