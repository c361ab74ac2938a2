// GPUs, whether this build can use them or not: cuda/ implements this header where CUDA is built,
// no_cuda/ otherwise (cmake/Folder.cmake).
//
// Thread rule: any thread.

#ifndef PENSTOCK_KERNELS_GPU_H_
#define PENSTOCK_KERNELS_GPU_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/device.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// A GPU as CUDA describes it.
struct Gpu {
  std::string name;               // of its model: "NVIDIA H200"
  std::string id;                 // of this piece of hardware, as nvidia-smi -L shows it: "GPU-..."
  int capability = 0;             // of its architecture: 90 for 9.0
  uint64_t memory_bytes = 0;      // of its memory, in use or not
  int num_processors = 0;         // streaming multiprocessors
  double memory_bytes_per_s = 0;  // peak rate of its memory, by clock and bus width; 0: not known
  std::vector<int> peers;         // devices whose memory it can access directly
};

// The GPUs that CUDA sees, and the versions of what runs them.
struct GpuSystem {
  std::vector<Gpu> gpus;  // by index of CUDA
  // Why there is none, or what is wrong; OK otherwise.
  absl::Status status;
  // Of the CUDA runtime, as CUDA numbers versions: 13000 is 13.0. 0: none.
  int runtime_version = 0;
  // The newest CUDA that the driver supports, numbered likewise. 0: there is no driver, or CUDA is
  // not built.
  int driver_version = 0;
};

// What CUDA sees. It starts CUDA in this process, and loads cuBLASLt where there is a GPU, which
// takes some tenths of a second.
GpuSystem FindGpus();

// What computes convolutions and attention on GPUs: "cuDNN 9.19 (convolutions, attention)", or "no
// cuDNN" and why. Loads it.
std::string DescribeCudnn();

// Kernels of GPUs. Empty where CUDA is not built.
KernelRegistry CudaKernels();

// GPU `index` as a device of the kind "cuda"; kFailedPrecondition says why there is none.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int index);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_GPU_H_
