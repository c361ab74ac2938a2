#include "kernels/gpu.h"

namespace penstock::kernels {
namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "this build is without CUDA: configure it with PENSTOCK_CUDA=ON");
}

}  // namespace

GpuSystem FindGpus() {
  GpuSystem system;
  system.status = NotBuilt();
  return system;
}

std::string DescribeCudnn() { return "no cuDNN: this build is without CUDA"; }

KernelRegistry CudaKernels() { return {}; }

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int) { return NotBuilt(); }

}  // namespace penstock::kernels
