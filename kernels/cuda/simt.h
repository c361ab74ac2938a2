// What every *.cu file of this folder needs: launching, vectors of 16 bytes, reductions over a
// block, and access to integer operands. Device code; host code includes launch.h and the header of
// a group of kernels instead.
//
// With PENSTOCK_SIMULATED_SIMT the same sources compile as C++ for the host: kernels use no feature
// of CUDA but what simulated_simt.h has.
//
// Thread rule: device functions are called by whole blocks where their comment says so.

#ifndef PENSTOCK_KERNELS_CUDA_SIMT_H_
#define PENSTOCK_KERNELS_CUDA_SIMT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"

#ifdef PENSTOCK_SIMULATED_SIMT
#include "kernels/cuda/simulated_simt.h"
#else
#include <cuda_runtime.h>
#endif

namespace penstock::kernels::cuda {

// ---- Launching.

#ifdef PENSTOCK_SIMULATED_SIMT

template <typename... Params, typename... Args>
LaunchResult Launch(void (*kernel)(Params...), const LaunchShape& shape, StreamHandle,
                    Args... args) {
  if (shape.shared_bytes > kPlainSharedBytes &&
      simulated::with_more_shared_memory.count(reinterpret_cast<void*>(kernel)) == 0) {
    return 1;  // cudaErrorInvalidValue
  }
  return simulated::RunGrid(shape, [&] { kernel(static_cast<Params>(args)...); });
}

template <typename... Params>
LaunchResult AllowSharedMemory(void (*kernel)(Params...)) {
  simulated::with_more_shared_memory.insert(reinterpret_cast<void*>(kernel));
  return 0;
}

// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
T* SharedMemory() {
  return reinterpret_cast<T*>(simulated::shared_memory);
}

#else

// Gives a run of the kernel to the stream. REQUIRES: the stream's device is current; for more than
// kPlainSharedBytes, AllowSharedMemory.
template <typename... Params, typename... Args>
LaunchResult Launch(void (*kernel)(Params...), const LaunchShape& shape, StreamHandle stream,
                    Args... args) {
  if (!IsLaunchable(shape)) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid_x, shape.grid_y, 1);
  config.blockDim = dim3(shape.threads_x, shape.threads_y, 1);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

// Lets launches of the kernel on the current device have up to kMaxSharedBytes of dynamic shared
// memory. Takes long: once, not at every launch.
template <typename... Params>
LaunchResult AllowSharedMemory(void (*kernel)(Params...)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kMaxSharedBytes));
}

// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
__device__ T* SharedMemory() {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return reinterpret_cast<T*>(shared_bytes);
}

#endif

// ---- Loops. Position and number of the launch's threads in x.

__device__ inline int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t ThreadCount() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// N elements that move at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

inline constexpr int kPackBytes = 16;

// Whether packs of N elements can be read or written from `data` on. Host code.
template <int N, typename T>
inline bool IsAligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % (sizeof(T) * N) == 0;
}

// ---- Reductions.

struct SumOp {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN where either is.
struct MaxOp {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return (a > b || a != a) ? a : b;
  }
};

// Every lane gets the result. All lanes of the warp call it.
template <typename T, typename F>
__device__ T ReduceWarp(T value, F f) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = f(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Every thread gets the same bits. All threads of a block of whole warps in x call it.
template <typename T, typename F>
__device__ T ReduceBlock(T value, T identity, F f) {
  __shared__ T of_warp[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  value = ReduceWarp(value, f);
  if (num_warps == 1) return value;
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  value = ReduceWarp(lane < num_warps ? of_warp[lane] : identity, f);
  __syncthreads();  // of_warp may be written again
  return value;
}

template <typename T>
__device__ T SumBlock(T value) {
  return ReduceBlock(value, T(0), SumOp());
}
template <typename T>
__device__ T MaxBlock(T value) {
  return ReduceBlock(value, T(-INFINITY), MaxOp());
}

// ---- Integer operands.

__device__ inline int64_t LoadIndex(const Indices& indices, int64_t i) {
  switch (indices.type) {
    case Indices::kI8:
      return static_cast<const int8_t*>(indices.data)[i];
    case Indices::kU8:
      return static_cast<const uint8_t*>(indices.data)[i];
    case Indices::kI32:
      return static_cast<const int32_t*>(indices.data)[i];
    default:
      return static_cast<const int64_t*>(indices.data)[i];
  }
}

// Whether the index lies in [0, limit); reports it if not.
__device__ inline bool CheckIndex(const FaultSite& site, int64_t index, int64_t limit) {
  if (index >= 0 && index < limit) return true;
  if (site.fault->kind == Fault::kNone) {
    site.fault->value = index;
    site.fault->limit = limit;
    site.fault->launch = site.launch;
    __threadfence_system();
    site.fault->kind = Fault::kIndexOutside;
  }
  return false;
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_SIMT_H_
