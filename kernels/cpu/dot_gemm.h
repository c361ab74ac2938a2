// The product of bf16 matrices by the processor's dot product of pairs (AVX512_BF16), packed as in
// gemm.h: b in panels of pairs along the depth; a where it lies if its rows are contiguous.
//
// Thread rule: any thread, each with its own workspace.

#ifndef PENSTOCK_KERNELS_CPU_DOT_GEMM_H_
#define PENSTOCK_KERNELS_CPU_DOT_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/gemm.h"

namespace penstock::kernels {

// Whether the kernels were compiled for a processor that has it. If not, DotGemm does nothing.
bool HasDotProduct();

// `rounds`: the result is bf16.
size_t DotGemmWorkspaceBytes(int64_t m, int64_t n, int64_t k, bool rounds);

// As HalfGemm (half_gemm.h). REQUIRES: k > 0.
void DotGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const BFloat16> a,
             StridedMatrix<const BFloat16> b, StridedMatrix<float> c, bool accumulate,
             void* workspace);
void DotGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const BFloat16> a,
             StridedMatrix<const BFloat16> b, StridedMatrix<BFloat16> c, bool accumulate,
             void* workspace);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_DOT_GEMM_H_
