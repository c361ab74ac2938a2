#include "kernels/gpu.h"

#include <cstdlib>

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/convolution_library.h"
#include "kernels/cuda/cublas_api.h"
#include "kernels/cuda/cuda_device.h"

namespace penstock::kernels {
namespace {

// "GPU-5a39ba33-9f6c-be8a-57d2-3e7f8a1fe0c1"
std::string IdOf(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id = "GPU-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) id += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    id += kDigits[byte / 16];
    id += kDigits[byte % 16];
  }
  return id;
}

absl::StatusOr<Gpu> Describe(int index, int count) {
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(cuda::ToStatus(cudaGetDeviceProperties(&properties, index),
                                 StrCat("reading the properties of cuda device ", index)));
  Gpu gpu;
  gpu.name = properties.name;
  gpu.id = IdOf(properties.uuid);
  gpu.capability = 10 * properties.major + properties.minor;
  gpu.memory_bytes = properties.totalGlobalMem;
  gpu.num_processors = properties.multiProcessorCount;
  int clock_khz = 0;
  if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, index) == cudaSuccess) {
    // Two transfers a clock.
    gpu.memory_bytes_per_s = 2e3 * clock_khz * properties.memoryBusWidth / 8;
  }
  for (int peer = 0; peer < count; ++peer) {
    int can_access = 0;
    if (peer != index && cudaDeviceCanAccessPeer(&can_access, index, peer) == cudaSuccess &&
        can_access != 0) {
      gpu.peers.push_back(peer);
    }
  }
  return gpu;
}

// What follows "convolutions" in a list of what cuDNN computes.
std::string DescribeAttention() {
  const absl::StatusOr<cuda::AttentionChoice> choice =
      cuda::ParseAttentionChoice(std::getenv(cuda::kAttentionVariable));
  if (!choice.ok()) return StrCat("; ", ToStd(choice.status().message()));
  if (*choice == cuda::AttentionChoice::kOwn) {
    return StrCat("; not attention: ", cuda::kAttentionVariable, "=own");
  }
  const absl::Status found = cuda::FindCudnnAttention();
  return found.ok() ? ", attention" : StrCat("; not attention: ", ToStd(found.message()));
}

}  // namespace

GpuSystem FindGpus() {
  GpuSystem system;
  cudaRuntimeGetVersion(&system.runtime_version);
  cudaDriverGetVersion(&system.driver_version);
  int count = 0;
  if (const cudaError_t counted = cudaGetDeviceCount(&count); counted != cudaSuccess) {
    cudaGetLastError();  // it is known
    // CUDA then complains of an old driver.
    if (system.driver_version == 0) {
      system.status =
          absl::FailedPreconditionError("CUDA finds no GPU: no NVIDIA driver is installed");
      return system;
    }
    system.status =
        absl::FailedPreconditionError(StrCat("CUDA finds no GPU: ", cudaGetErrorString(counted)));
    return system;
  }
  if (count == 0) system.status = absl::FailedPreconditionError("CUDA finds no GPU");
  for (int index = 0; index < count; ++index) {
    absl::StatusOr<Gpu> gpu = Describe(index, count);
    if (!gpu.ok()) {
      system.status = gpu.status();
      return system;
    }
    system.gpus.push_back(*std::move(gpu));
  }
  // Devices cannot be opened without it.
  if (system.status.ok()) system.status = cuda::LoadCublas().status();
  return system;
}

std::string DescribeCudnn() {
  const absl::StatusOr<std::string> version = cuda::CudnnVersion();
  if (version.ok()) return StrCat("cuDNN ", *version, " (convolutions", DescribeAttention(), ")");
  return StrCat("no cuDNN: ", ToStd(version.status().message()));
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int index) {
  return cuda::OpenCudaDevice(index);
}

}  // namespace penstock::kernels
