// Blas through cuBLASLt.
//
// Thread rule: as blas.h.

#ifndef PENSTOCK_KERNELS_CUDA_CUBLAS_H_
#define PENSTOCK_KERNELS_CUDA_CUBLAS_H_

#include <memory>

#include "absl/status/statusor.h"

#include "kernels/cuda/blas.h"
#include "kernels/cuda/cublas_api.h"

namespace penstock::kernels::cuda {

// For the device that is current on this thread. Products do not outlive their Blas.
absl::StatusOr<std::unique_ptr<Blas>> CreateCublas(const CublasApi& api);
// With the library that LoadCublas finds.
absl::StatusOr<std::unique_ptr<Blas>> CreateCublas();

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CUBLAS_H_
