#include "kernels/cuda/cuda_library.h"

#include <cuda_runtime_api.h>

#include "base/strings.h"

namespace penstock::kernels::cuda {

std::string RuntimeFolder() {
  Dl_info runtime = {};
  if (dladdr(reinterpret_cast<void*>(&cudaRuntimeGetVersion), &runtime) == 0) return ".";
  const std::string path = runtime.dli_fname;
  return path.substr(0, path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
}

absl::StatusOr<void*> OpenCudaLibrary(std::string_view what, const std::string& name,
                                      const std::string& folder) {
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  void* library = dlopen(name.c_str(), kFlags);
  if (library != nullptr) return library;
  const char* said = dlerror();
  const std::string why = said != nullptr ? said : name;
  library = dlopen(StrCat(folder, "/", name).c_str(), kFlags);
  if (library != nullptr) return library;
  return absl::FailedPreconditionError(
      StrCat(what, " cannot be loaded (", why, "; neither is it in ", folder,
             "): install it, or put its folder into LD_LIBRARY_PATH"));
}

}  // namespace penstock::kernels::cuda
