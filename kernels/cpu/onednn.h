// The functions of oneDNN that kernels use, but for those in onednn_convolution.h. What differs
// between its versions 2 and 3 belongs into onednn.cc; no oneDNN type leaves that file.
//
// Thread rule: any thread; each call runs on the calling thread alone. Kernels spread work over the
// device's pool themselves, so that oneDNN's OpenMP never starts threads of its own.

#ifndef PENSTOCK_KERNELS_CPU_ONEDNN_H_
#define PENSTOCK_KERNELS_CPU_ONEDNN_H_

#include <cstdint>

namespace penstock::kernels {

// Makes oneDNN run on the calling thread alone, from now on. Everything below does so itself.
void RunOneDnnOnOneThread();

// Compiles what OneDnnGemm needs, once a process (about 30 ms). Otherwise its first call does.
void PrepareOneDnnGemm();

// c[m, n] (row stride ldc) = op(a) op(b), plus c when `accumulate`; op transposes when asked. All
// row-major: lda is the row stride of a as stored.
// REQUIRES: m, n, k > 0 and each stride at least its row's length.
void OneDnnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
                int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ONEDNN_H_
