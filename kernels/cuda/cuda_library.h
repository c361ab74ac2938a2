// Loading of CUDA's large libraries, which programs do not link.
//
// Thread rule: any thread.

#ifndef PENSTOCK_KERNELS_CUDA_CUDA_LIBRARY_H_
#define PENSTOCK_KERNELS_CUDA_CUDA_LIBRARY_H_

#include <dlfcn.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock::kernels::cuda {

// Where the CUDA runtime lies; "." if that is not known.
std::string RuntimeFolder();

// Loads a library, which then stays: CUDA's are not made to be unloaded. It is looked for as the
// system does, then in `folder`. kFailedPrecondition, of `what`, where it is in neither.
absl::StatusOr<void*> OpenCudaLibrary(std::string_view what, const std::string& name,
                                      const std::string& folder);

// Fills in one function. The first that is missing is named in `missing`.
template <typename F>
void FindFunction(void* library, const char* name, F* function, std::string* missing) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CUDA_LIBRARY_H_
