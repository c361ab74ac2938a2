// The functions of cuBLASLt that this folder uses, as a table: of the library, or of a test.
//
// The library is large: a program that links it takes 0.1 s longer to start. So it is not linked
// but loaded with the first device.
//
// Thread rule: a value. What is behind it is thread-safe as cuBLASLt says.

#ifndef PENSTOCK_KERNELS_CUDA_CUBLAS_API_H_
#define PENSTOCK_KERNELS_CUDA_CUBLAS_API_H_

#include <string>

#include "absl/status/statusor.h"
#include <cublasLt.h>

namespace penstock::kernels::cuda {

struct CublasApi {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusName) get_status_name = nullptr;
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCapGetAttribute) get_capability = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
};

// The file name of the library's major version that this build has the headers of.
std::string CublasLibraryName();

// Loads the library, which then stays: CUDA's libraries are not made to be unloaded. It is looked
// for as the system does, then beside the CUDA runtime. kFailedPrecondition says why it cannot be
// loaded, or what it lacks.
absl::StatusOr<CublasApi> LoadCublas();

// The same of a library of this name; `folder` is where it is looked for after that. For tests.
absl::StatusOr<CublasApi> LoadCublas(const std::string& name, const std::string& folder);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CUBLAS_API_H_
