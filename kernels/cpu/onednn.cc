#include "kernels/cpu/onednn.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>

#include "oneapi/dnnl/dnnl.h"

namespace penstock::kernels {
namespace {

// A small product with a transposed a goes in pieces of k: at once oneDNN reads a where it lies,
// and the columns of a matrix whose rows are pages apart fall onto each other in the cache (1024 x
// 256 x 1024 from memory: 126 GFLOP/s at once, 150 so, of 185). Small: c stays in the second-level
// cache.
constexpr int64_t kSmallElements = int64_t{1} << 19;
constexpr int64_t kTransposedDepth = 128;

}  // namespace

// oneDNN asks OpenMP how many threads the calling thread may have. The function is looked up in the
// runtime that oneDNN itself has loaded, whichever that is; a build without OpenMP has none.
void RunOneDnnOnOneThread() {
  using SetNumThreads = void (*)(int);
  static const auto set_num_threads =
      reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  thread_local bool is_set = false;
  if (is_set || set_num_threads == nullptr) return;
  set_num_threads(1);
  is_set = true;
}

void PrepareOneDnnGemm() {
  static std::once_flag is_prepared;
  std::call_once(is_prepared, [] {
    constexpr int64_t kSize = 16;
    float a[kSize * kSize] = {};
    float c[kSize * kSize];
    for (int64_t m : {int64_t{1}, kSize}) {
      OneDnnGemm(false, false, m, kSize, kSize, a, kSize, a, kSize, c, kSize, false);
    }
  });
}

void OneDnnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
                int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  RunOneDnnOnOneThread();
  const int64_t depth = transpose_a && m * n <= kSmallElements ? kTransposedDepth : k;
  for (int64_t d = 0; d < k; d += depth) {
    // Fails only for arguments that the caller has excluded.
    (void)dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, std::min(depth, k - d),
                     1.0f, a + d * (transpose_a ? lda : 1), lda, b + d * (transpose_b ? 1 : ldb),
                     ldb, accumulate || d > 0 ? 1.0f : 0.0f, c, ldc);
  }
}

}  // namespace penstock::kernels
