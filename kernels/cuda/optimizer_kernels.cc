// Optimisers: one launch a parameter, which reads its scalars on the device.

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/optimizers.h"

namespace penstock::kernels::cuda {
namespace {

// An error unless the scalars, which the device reads, are f32.
absl::Status CheckScalars(const KernelSpec& spec, std::initializer_list<int> inputs) {
  for (const int i : inputs) {
    if (spec.inputs[i].dtype != DType::kF32) return Unsupported(spec, spec.inputs[i].dtype);
  }
  return absl::OkStatus();
}

KernelOr CreateAdamw(const KernelSpec& spec, Device&, Stream& stream) {
  RETURN_IF_ERROR(CheckScalars(spec, {5, 6}));
  AdamwParams params;
  params.beta1 = spec.attributes.GetDouble("beta1", 0.9);
  params.beta2 = spec.attributes.GetDouble("beta2", 0.999);
  params.epsilon = spec.attributes.GetDouble("epsilon", 1e-8);
  params.weight_decay = spec.attributes.GetDouble("weight_decay", 0.0);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
      AdamwParams run = params;
      run.step = Input<int64_t>(args, 4);
      run.rate = Input<float>(args, 5);
      run.scale = Input<float>(args, 6);
      return Launched(
          spec, LaunchAdamw(to.handle(), run, spec.outputs[0].num_elements(), Input<T>(args, 0),
                            Input<T>(args, 1), Input<T>(args, 2), Input<T>(args, 3),
                            Output<T>(args, 0), Output<T>(args, 1), Output<T>(args, 2)));
    });
  });
}

KernelOr CreateSgd(const KernelSpec& spec, Device&, Stream& stream) {
  RETURN_IF_ERROR(CheckScalars(spec, {2, 3}));
  SgdParams params;
  params.momentum = static_cast<float>(spec.attributes.GetDouble("momentum", 0.0));
  params.weight_decay = static_cast<float>(spec.attributes.GetDouble("weight_decay", 0.0));
  params.is_nesterov = spec.attributes.GetBool("nesterov", false);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
      SgdParams run = params;
      run.rate = Input<float>(args, 2);
      run.scale = Input<float>(args, 3);
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
