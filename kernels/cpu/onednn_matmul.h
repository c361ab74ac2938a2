// Products of bf16 matrices in oneDNN. What differs between its versions 2 and 3 belongs into
// onednn_matmul.cc; no oneDNN type leaves that file.
//
// A product is compiled at its first use on a thread (0.1 to 0.7 ms; 2 microseconds if another
// thread has done so before) and kept there. Each thread keeps its products and oneDNN's memory for
// them until it ends, so later products allocate nothing.
//
// Thread rule: any thread; a product runs on the calling thread alone.

#ifndef PENSTOCK_KERNELS_CPU_ONEDNN_MATMUL_H_
#define PENSTOCK_KERNELS_CPU_ONEDNN_MATMUL_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/gemm.h"

namespace penstock::kernels {

// What oneDNN multiplies bf16 with on this processor.
enum class Bf16Unit : uint8_t {
  kNone,
  kDotProduct,  // AVX512_BF16
  kTiles,       // AMX
};
Bf16Unit OneDnnBf16Unit();

// Compiles what any product needs, once a process, where oneDNN is chosen (half_gemm.h).
void PrepareOneDnnMatmul();

// c[m, n] = a[m, k] b[k, n], plus c when `accumulate`, added up in f32; a result in bf16 is rounded
// once. False, with nothing done, if oneDNN has no fast code for it. C: BFloat16 or float.
// REQUIRES: m, n, k > 0.
template <typename C>
bool OneDnnMatmul(int64_t m, int64_t n, int64_t k, StridedMatrix<const BFloat16> a,
                  StridedMatrix<const BFloat16> b, StridedMatrix<C> c, bool accumulate);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ONEDNN_MATMUL_H_
