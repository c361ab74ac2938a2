#include "penstock/registries.h"

#include "kernels/gpu.h"

namespace penstock {

Registries BuiltinRegistries() {
  Registries registries;
  registries.ops = graph::BuiltinOps();
  registries.models = graph::BuiltinModels();
  registries.kernels = kernels::CpuKernels();
  registries.cuda_kernels = kernels::CudaKernels();
  registries.policies = planner::BuiltinPolicies();
  return registries;
}

}  // namespace penstock
