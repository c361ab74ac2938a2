// Matrix products of floats of 16 bits, added up in f32, on one thread.
//
// bf16 on processors that multiply it (AVX512_BF16, AMX) goes through oneDNN, or, where that takes
// long to start or does not read the strides, by a packed product as in gemm.h whose micro-kernel
// multiplies pairs along the depth. Everything else is converted to f32 in blocks and multiplied by
// Gemm<float>.
//
// Thread rule: any thread, each with its own workspace. Invariant: the order of summation depends
// on m, n, k and the strides alone.

#ifndef PENSTOCK_KERNELS_CPU_HALF_GEMM_H_
#define PENSTOCK_KERNELS_CPU_HALF_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn_matmul.h"

namespace penstock::kernels {

// The ways to multiply bf16.
enum class Bf16Product : uint8_t {
  kDot,        // dot_gemm.h
  kOneDnn,     // onednn_matmul.h
  kConverted,  // ConvertedGemm
};

// The fastest way for a product of these sizes, given what oneDNN multiplies with on the processor
// and whether DotGemm is compiled for it.
Bf16Product ChooseBf16Product(Bf16Unit unit, bool has_dot_product, int64_t m, int64_t n, int64_t k);

// As GemmWorkspaceBytes. T: BFloat16 or Float16; C: T or float.
template <typename T, typename C>
size_t HalfGemmWorkspaceBytes(int64_t m, int64_t n, int64_t k);

// c[m, n] = a[m, k] b[k, n], plus c when `accumulate`. A result of 16 bits is rounded once.
template <typename T, typename C>
void HalfGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
              StridedMatrix<C> c, bool accumulate, void* workspace);

// The product by conversion, on any processor. REQUIRES: k > 0.
template <typename T, typename C>
void ConvertedGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a,
                   StridedMatrix<const T> b, StridedMatrix<C> c, bool accumulate, void* workspace);
template <typename T, typename C>
size_t ConvertedGemmWorkspaceBytes(int64_t m, int64_t n, int64_t k);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_HALF_GEMM_H_
