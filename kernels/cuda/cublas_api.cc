#include "kernels/cuda/cublas_api.h"

#include <dlfcn.h>

#include <cuda_runtime_api.h>

#include "base/strings.h"

namespace penstock::kernels::cuda {
namespace {

// Fills in one function. The first that is missing is named in `missing`.
template <typename F>
void Find(void* library, const char* name, F* function, std::string* missing) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

// Where the CUDA runtime lies; "." if that is not known.
std::string RuntimeFolder() {
  Dl_info runtime = {};
  if (dladdr(reinterpret_cast<void*>(&cudaRuntimeGetVersion), &runtime) == 0) return ".";
  const std::string path = runtime.dli_fname;
  return path.substr(0, path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
}

void* Open(const std::string& path) {
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

}  // namespace

std::string CublasLibraryName() { return StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

absl::StatusOr<CublasApi> LoadCublas(const std::string& name, const std::string& folder) {
  void* library = Open(name);
  if (library == nullptr) {
    const char* said = dlerror();
    const std::string why = said != nullptr ? said : name;
    library = Open(StrCat(folder, "/", name));
    if (library == nullptr) {
      return absl::FailedPreconditionError(
          StrCat("cuBLASLt cannot be loaded (", why, "; neither is it in ", folder,
                 "): install it, or put its folder into LD_LIBRARY_PATH"));
    }
  }
  CublasApi api;
  std::string missing;
  Find(library, "cublasLtCreate", &api.create, &missing);
  Find(library, "cublasLtDestroy", &api.destroy, &missing);
  Find(library, "cublasLtGetStatusName", &api.get_status_name, &missing);
  Find(library, "cublasLtGetStatusString", &api.get_status_string, &missing);
  Find(library, "cublasLtMatmul", &api.matmul, &missing);
  Find(library, "cublasLtMatmulAlgoGetHeuristic", &api.get_heuristic, &missing);
  Find(library, "cublasLtMatmulDescCreate", &api.create_operation, &missing);
  Find(library, "cublasLtMatmulDescDestroy", &api.destroy_operation, &missing);
  Find(library, "cublasLtMatmulDescSetAttribute", &api.set_operation, &missing);
  Find(library, "cublasLtMatmulPreferenceCreate", &api.create_preference, &missing);
  Find(library, "cublasLtMatmulPreferenceDestroy", &api.destroy_preference, &missing);
  Find(library, "cublasLtMatmulPreferenceSetAttribute", &api.set_preference, &missing);
  Find(library, "cublasLtMatrixLayoutCreate", &api.create_layout, &missing);
  Find(library, "cublasLtMatrixLayoutDestroy", &api.destroy_layout, &missing);
  Find(library, "cublasLtMatrixLayoutSetAttribute", &api.set_layout, &missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        StrCat(name, " has no function ", missing, ": it is not the library of CUDA ",
               CUDART_VERSION / 1000, ", with which this program was built"));
  }
  return api;
}

absl::StatusOr<CublasApi> LoadCublas() { return LoadCublas(CublasLibraryName(), RuntimeFolder()); }

}  // namespace penstock::kernels::cuda
