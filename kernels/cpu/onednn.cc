#include "kernels/cpu/onednn.h"

#include <dlfcn.h>

#include "oneapi/dnnl/dnnl.h"

namespace penstock::kernels {
namespace {

// oneDNN asks OpenMP how many threads the calling thread may have. The function is looked up in the
// runtime that oneDNN itself has loaded, whichever that is; a build without OpenMP has none.
void UseOneThread() {
  using SetNumThreads = void (*)(int);
  static const auto set_num_threads =
      reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  thread_local bool is_set = false;
  if (is_set || set_num_threads == nullptr) return;
  set_num_threads(1);
  is_set = true;
}

}  // namespace

void OneDnnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
                int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  UseOneThread();
  // Fails only for arguments that the caller has excluded.
  (void)dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb,
                   accumulate ? 1.0f : 0.0f, c, ldc);
}

}  // namespace penstock::kernels
