#include <cassert>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/gpu.h"

namespace penstock::kernels::cuda {

void AddKernel(KernelRegistry* registry, std::string op, KernelDef def) {
  [[maybe_unused]] const absl::Status status = registry->Add(std::move(op), std::move(def));
  assert(status.ok());  // a name is listed once
}

}  // namespace penstock::kernels::cuda

namespace penstock::kernels {

KernelRegistry CudaKernels() {
  KernelRegistry registry;
  cuda::AddElementwiseKernels(&registry);
  cuda::AddRandomKernels(&registry);
  cuda::AddOptimizerKernels(&registry);
  cuda::AddCopyKernels(&registry);
  cuda::AddLocalKernels(&registry);
  cuda::AddRowKernels(&registry);
  cuda::AddReduceKernels(&registry);
  cuda::AddSumSquaresKernels(&registry);
  cuda::AddContractionKernels(&registry);
  cuda::AddEpilogueKernels(&registry);
  cuda::AddAttentionKernels(&registry);
  cuda::AddImageKernels(&registry);
  cuda::AddRoutingKernels(&registry);
  return registry;
}

}  // namespace penstock::kernels
