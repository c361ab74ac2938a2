#include <cuda_runtime.h>

#include "kernels/cuda/device_code.h"

namespace penstock::kernels::cuda {
namespace {

// All kernels are made for the same architectures, so one stands for all.
__global__ void EmptyKernel() {}

}  // namespace

LaunchResult FindDeviceCode() {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, EmptyKernel);
}

int LowestArchitecture() {
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};  // of nvcc, ascending: 800, 900
  return kArchitectures[0] / 10;
}

}  // namespace penstock::kernels::cuda
