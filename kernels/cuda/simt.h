// What every *.cu file of this folder needs: launching, elements of 16 bits, vectors of 16 bytes,
// reductions over a block, and access to integer operands. Device code; host code includes launch.h
// and the header of a group of kernels instead.
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
#include <type_traits>

#include "base/half.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_table.h"

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
  if (shape.shared_bytes > kPlainSharedBytes) {
    const auto allowed = simulated::allowed_shared_bytes.find(reinterpret_cast<void*>(kernel));
    if (allowed == simulated::allowed_shared_bytes.end() || shape.shared_bytes > allowed->second) {
      return 1;  // cudaErrorInvalidValue
    }
  }
  const auto run = [=] {
    return simulated::RunGrid(shape, [&] { kernel(static_cast<Params>(args)...); });
  };
  if (simulated::captured == nullptr) return run();
  simulated::captured->push_back(run);
  return 0;
}

template <typename... Params>
LaunchResult AllowSharedMemory(void (*kernel)(Params...), size_t num_bytes) {
  if (num_bytes > kMaxSharedBytes) return 1;
  simulated::allowed_shared_bytes[reinterpret_cast<void*>(kernel)] = num_bytes;
  return 0;
}

// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
T* SharedMemory() {
  return reinterpret_cast<T*>(simulated::shared_memory);
}

inline float BitsToFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float HalfBitsToFloat(uint16_t bits) { return ToFloat(Float16{bits}); }
inline uint16_t BFloat16Bits(float x) { return ToBFloat16(x).bits; }
inline uint16_t HalfBits(float x) { return ToFloat16(x).bits; }
inline float Exp2(float x) { return std::exp2(x); }

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

// Lets launches of the kernel on the current device have up to `num_bytes` of dynamic shared
// memory; with its __shared__ variables that may be kMaxSharedBytes. Takes long: once, not at every
// launch.
template <typename... Params>
LaunchResult AllowSharedMemory(void (*kernel)(Params...), size_t num_bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(num_bytes));
}

// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
__device__ T* SharedMemory() {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return reinterpret_cast<T*>(shared_bytes);
}

// Conversions that are one instruction each; their headers would take nvcc longer than most files.
__device__ inline float BitsToFloat(uint32_t bits) { return __uint_as_float(bits); }
__device__ inline float HalfBitsToFloat(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
__device__ inline uint16_t BFloat16Bits(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ inline uint16_t HalfBits(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
// 2^x, with a relative error of up to 2^-22; 0 for a result below the normal numbers.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

inline constexpr float kLog2E = 1.4426950408889634f;  // exp(x) = Exp2(kLog2E x)

// ---- Loops. Position and number of the launch's threads in x.

__device__ inline int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t ThreadCount() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// A part of an entry of a LaunchTable.
struct TableChunk {
  int entry = 0;
  int64_t index = 0;  // among those of the entry
};
template <typename Table>
__device__ inline TableChunk FindChunk(const Table& table, int chunk) {
  int low = 0;  // begins[low] <= chunk < begins[high]
  int high = table.num_entries;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.begins[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {low, chunk - table.begins[low]};
}

// ---- Elements. Those of 16 bits are computed with in float, and rounded to nearest even when they
// are stored.

template <typename T>
using Compute = std::conditional_t<kIsHalf<T>, float, T>;

template <typename T>
__device__ inline Compute<T> Widen(T x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BitsToFloat(static_cast<uint32_t>(x.bits) << 16);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return HalfBitsToFloat(x.bits);
  } else {
    return x;
  }
}

template <typename T>
__device__ inline T Narrow(Compute<T> x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return {BFloat16Bits(x)};
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {HalfBits(x)};
  } else {
    return x;
  }
}

// *to = value, plus *to with `adds`: rounded once.
template <typename T>
__device__ inline void Put(bool adds, Compute<T> value, T* to) {
  *to = Narrow<T>(adds ? Widen(*to) + value : value);
}

// N elements that move at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

inline constexpr int kPackBytes = 16;

// Elements of a pack.
template <typename T>
inline constexpr int kPackOf = kPackBytes / static_cast<int>(sizeof(T));

// Whether packs of N elements can be read or written from `data` on.
template <int N, typename T>
__host__ __device__ inline bool IsAligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % (sizeof(T) * N) == 0;
}

// N values, as what they are computed in.
template <typename T, int N>
struct Values {
  Compute<T> v[N];
};

// The first `count` of N elements that are `step` apart; those behind them are 0. With kPacks as
// one pack: REQUIRES count == N, step == 1 and an aligned address.
template <bool kPacks, int N, typename T>
__device__ inline Values<T, N> LoadElements(const T* from, int64_t step, int count) {
  Values<T, N> values = {};
  if constexpr (kPacks) {
    const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
    for (int j = 0; j < N; ++j) values.v[j] = Widen(pack.v[j]);
  } else {
    for (int j = 0; j < N; ++j) {
      if (j < count) values.v[j] = Widen(from[j * step]);
    }
  }
  return values;
}

template <bool kPacks, int N, typename T>
__device__ inline void StoreElements(const Values<T, N>& values, int64_t step, int count, T* to) {
  if constexpr (kPacks) {
    Pack<T, N> pack;
    for (int j = 0; j < N; ++j) pack.v[j] = Narrow<T>(values.v[j]);
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  } else {
    for (int j = 0; j < N; ++j) {
      if (j < count) to[j * step] = Narrow<T>(values.v[j]);
    }
  }
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

// ---- Scalar and integer operands.

__device__ inline float LoadScalar(const Scalar& scalar) {
  switch (scalar.type) {
    case Scalar::kBF16:
      return Widen(*static_cast<const BFloat16*>(scalar.data));
    case Scalar::kF16:
      return Widen(*static_cast<const Float16*>(scalar.data));
    default:
      return *static_cast<const float*>(scalar.data);
  }
}

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

// to[k] = the index at i + k * step, for those below `count`. All loads are under way at once.
template <int N>
__device__ inline void LoadIndices(const Indices& indices, int64_t i, int64_t step, int64_t count,
                                   int64_t (&to)[N]) {
  const auto load = [&](const auto* data) {
    for (int k = 0; k < N; ++k) to[k] = i + k * step < count ? data[i + k * step] : 0;
  };
  switch (indices.type) {
    case Indices::kI8:
      return load(static_cast<const int8_t*>(indices.data));
    case Indices::kU8:
      return load(static_cast<const uint8_t*>(indices.data));
    case Indices::kI32:
      return load(static_cast<const int32_t*>(indices.data));
    default:
      return load(static_cast<const int64_t*>(indices.data));
  }
}

// Whether the index lies in [0, limit); reports it if not.
__device__ inline bool CheckIndex(const FaultSite& site, int64_t index, int64_t limit) {
  if (index >= 0 && index < limit) return true;
  if (site.fault->kind == Fault::kNone) {
    site.fault->value = index;
    site.fault->limit = limit;
    site.fault->launch =
        site.launch + (site.offsets != nullptr ? site.offsets->launch : uint64_t{0});
    __threadfence_system();
    site.fault->kind = Fault::kIndexOutside;
    if (site.fault->of_device != nullptr) *site.fault->of_device = 1;
  }
  return false;
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_SIMT_H_
