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

absl::Span<const std::string_view> MissingKernels() {
  static constexpr std::string_view kNames[] = {
      "avg_pool2d",
      "avg_pool2d_grad",
      "batch_norm",
      "batch_norm_grad",
      "batch_norm_inference",
      "batch_norm_weight_grad",
      "channel_variance",
      "combine",
      "combine_weight_grad",
      "conv2d",
      "conv2d_input_grad",
      "conv2d_weight_grad",
      "dispatch",
      "expert_slots",
      "max_pool2d",
      "max_pool2d_grad",
      "top_k",
  };
  return kNames;
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
  cuda::AddContractionKernels(&registry);
  cuda::AddAttentionKernels(&registry);
  return registry;
}

}  // namespace penstock::kernels
