#include "kernels/cuda/cublas_api.h"

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/cuda_library.h"

namespace penstock::kernels::cuda {

std::string CublasLibraryName() { return StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

absl::StatusOr<CublasApi> LoadCublas(const std::string& name, const std::string& folder) {
  ASSIGN_OR_RETURN(void* const library, OpenCudaLibrary("cuBLASLt", name, folder));
  CublasApi api;
  std::string missing;
  FindFunction(library, "cublasLtCreate", &api.create, &missing);
  FindFunction(library, "cublasLtDestroy", &api.destroy, &missing);
  FindFunction(library, "cublasLtGetStatusName", &api.get_status_name, &missing);
  FindFunction(library, "cublasLtGetStatusString", &api.get_status_string, &missing);
  FindFunction(library, "cublasLtMatmul", &api.matmul, &missing);
  FindFunction(library, "cublasLtMatmulAlgoGetHeuristic", &api.get_heuristic, &missing);
  FindFunction(library, "cublasLtMatmulAlgoCapGetAttribute", &api.get_capability, &missing);
  FindFunction(library, "cublasLtMatmulDescCreate", &api.create_operation, &missing);
  FindFunction(library, "cublasLtMatmulDescDestroy", &api.destroy_operation, &missing);
  FindFunction(library, "cublasLtMatmulDescSetAttribute", &api.set_operation, &missing);
  FindFunction(library, "cublasLtMatmulPreferenceCreate", &api.create_preference, &missing);
  FindFunction(library, "cublasLtMatmulPreferenceDestroy", &api.destroy_preference, &missing);
  FindFunction(library, "cublasLtMatmulPreferenceSetAttribute", &api.set_preference, &missing);
  FindFunction(library, "cublasLtMatrixLayoutCreate", &api.create_layout, &missing);
  FindFunction(library, "cublasLtMatrixLayoutDestroy", &api.destroy_layout, &missing);
  FindFunction(library, "cublasLtMatrixLayoutSetAttribute", &api.set_layout, &missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        StrCat(name, " has no function ", missing, ": it is not the library of CUDA ",
               CUDART_VERSION / 1000, ", with which this program was built"));
  }
  return api;
}

absl::StatusOr<CublasApi> LoadCublas() { return LoadCublas(CublasLibraryName(), RuntimeFolder()); }

}  // namespace penstock::kernels::cuda
