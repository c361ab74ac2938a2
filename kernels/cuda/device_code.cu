#include <cuda_runtime.h>

#include "kernels/cuda/device_code.h"

namespace penstock::kernels::cuda {
namespace {

// All kernels are made for the same architectures, so one stands for all.
__global__ void EmptyKernel() {}

__global__ void StoreOffsetsKernel(LaunchOffsets* to, LaunchOffsets offsets) { *to = offsets; }

}  // namespace

LaunchResult FindDeviceCode() {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, EmptyKernel);
}

LaunchResult StoreOffsets(StreamHandle stream, LaunchOffsets* to, const LaunchOffsets& offsets) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, 1, 1);
  config.blockDim = dim3(1, 1, 1);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, StoreOffsetsKernel, to, offsets);
}

int LowestArchitecture() {
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};  // of nvcc, ascending: 800, 900
  return kArchitectures[0] / 10;
}

}  // namespace penstock::kernels::cuda
