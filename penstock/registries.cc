#include "penstock/registries.h"

namespace penstock {

Registries BuiltinRegistries() {
  Registries registries;
  registries.ops = graph::BuiltinOps();
  registries.models = graph::BuiltinModels();
  registries.kernels = kernels::CpuKernels();
  registries.policies = planner::BuiltinPolicies();
  return registries;
}

}  // namespace penstock
