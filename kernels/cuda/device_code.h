// What the device itself has device code for: which GPUs the code of this build runs on, and the
// offsets of graphs.
//
// Thread rule: pure functions, but for what they ask of CUDA.

#ifndef PENSTOCK_KERNELS_CUDA_DEVICE_CODE_H_
#define PENSTOCK_KERNELS_CUDA_DEVICE_CODE_H_

#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// 0 if the current device can run the kernels; cudaErrorNoKernelImageForDevice or
// cudaErrorInvalidDeviceFunction if there is no code for it.
LaunchResult FindDeviceCode();

// *to = offsets, in the order of the stream.
LaunchResult StoreOffsets(StreamHandle stream, LaunchOffsets* to, const LaunchOffsets& offsets);

// The lowest compute capability that this build has code for, times ten.
int LowestArchitecture();

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_DEVICE_CODE_H_
