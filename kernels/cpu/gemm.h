// Matrix products on one thread: f32 with unit strides through oneDNN, unless it is slow at them,
// everything else by a packed product of our own.
//
// Ours follows Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008)
// and BLIS (Van Zee & van de Geijn, TOMS 2015): blocks of both operands are packed into panels of
// the micro-kernel's height and width, so any strides will do; the micro-kernel holds its tile of c
// in registers.
//
// Thread rule: any thread, each with its own workspace. Invariant: the order of summation depends
// on m, n, k and the strides alone.

#ifndef PENSTOCK_KERNELS_CPU_GEMM_H_
#define PENSTOCK_KERNELS_CPU_GEMM_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace penstock::kernels {

// A matrix in memory; strides in elements. Its transpose is the same with the strides swapped.
template <typename T>
struct StridedMatrix {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

// A matrix whose rows are contiguous or, where it is transposed, its columns: what BLAS and oneDNN
// read without a copy.
struct RowMajor {
  bool is_transposed = false;
  int64_t stride = 0;  // from one row, or column, to the next: at least its length
  friend auto operator<=>(const RowMajor&, const RowMajor&) = default;
};

// The matrix with these strides as a RowMajor, if it is one.
std::optional<RowMajor> AsRowMajor(int64_t rows, int64_t columns, int64_t row_stride,
                                   int64_t column_stride);

// Bytes of workspace that a product of at most these sizes needs, or its transpose: Gemm computes
// c' instead of c where that lies in rows. A multiple of 64.
template <typename T>
size_t GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k);

// For KernelDef::prepare, so that no step waits for a compiler: for f32 and floats of 16 bits it
// takes some 30 ms, once a process.
void PrepareGemm(DType dtype);

// c[m, n] = a[m, k] b[k, n], plus c when `accumulate`. Integers wrap.
template <typename T>
void Gemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
          StridedMatrix<T> c, bool accumulate, void* workspace);

// The packed product for every T, f32 included.
template <typename T>
void PackedGemm(int64_t m, int64_t n, int64_t k, StridedMatrix<const T> a, StridedMatrix<const T> b,
                StridedMatrix<T> c, bool accumulate, void* workspace);

// Whether oneDNN can compute such a product.
bool HasUnitStrides(int64_t m, int64_t n, int64_t k, const StridedMatrix<const float>& a,
                    const StridedMatrix<const float>& b, const StridedMatrix<float>& c);

// Whether Gemm<float> may pack for such a product or parts of it: if not, it needs no workspace.
bool MayPack(int64_t m, int64_t n, int64_t k, const StridedMatrix<const float>& a,
             const StridedMatrix<const float>& b, const StridedMatrix<float>& c);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_GEMM_H_
