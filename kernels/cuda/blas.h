// Matrix products of floats by a library, as cuBLASLt computes them: what a product of strided
// matrices is in its terms, and the interface that tests implement on the host. Sums are in f32,
// those of f64 in f64.
//
// Thread rule: a Blas and its products belong to the executor of their device.

#ifndef PENSTOCK_KERNELS_CUDA_BLAS_H_
#define PENSTOCK_KERNELS_CUDA_BLAS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// c[m, n] = a[m, k] b[k, n] for each of `batch` triples; strides in elements.
struct ProductShape {
  int64_t m = 1;
  int64_t n = 1;
  int64_t k = 1;
  int64_t batch = 1;
  int64_t a_row = 0, a_column = 0, a_batch = 0;
  int64_t b_row = 0, b_column = 0, b_batch = 0;
  int64_t c_row = 0, c_column = 0, c_batch = 0;
};

// The same for a library of column-major matrices: C[rows, columns] = op(A) op(B), where A is
// a [rows, k] matrix, or with transpose_a a [k, rows] one, with a distance of lda between columns.
struct BlasLayout {
  bool is_swapped = false;  // A is b, and B is a
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t k = 1;
  int64_t lda = 1, ldb = 1, ldc = 1;
  int64_t batch = 1;
  int64_t a_batch = 0, b_batch = 0, c_batch = 0;
};

// None where a matrix has no unit stride, or its columns overlap.
//
// Example: row-major c[m, n] = a[m, k] b[k, n] is the column-major c'[n, m] = b'[n, k] a'[k, m]:
// swapped, with rows = n, columns = m, lda = n, ldb = k, ldc = n and nothing transposed.
std::optional<BlasLayout> BlasLayoutOf(const ProductShape& shape);

// Of the matrices a and b, and of c: f32, f64, bf16 or f16, or 16 bits with a c of f32.
struct BlasTypes {
  DType operands = DType::kF32;
  DType result = DType::kF32;
};

// What a product does besides, in the terms of the library: A, B and C are those of BlasLayout, a
// vector has the type of C, and so has the matrix Z, which lies in memory as C does.
enum class BlasEpilogue {
  kNone,
  kAdd,          // C += the matrix R, which lies in memory as C does and has its type
  kBias,         // C += bias[rows], which is the same for all columns
  kBiasAdd,      // both
  kBiasGelu,     // C = gelu(C + bias), its tanh approximation
  kBiasGeluAux,  // the same, and Z = C + bias
  kGeluGrad,     // C *= the gradient of gelu at Z
};

// The operands and results of an epilogue, where it has them.
struct EpiloguePointers {
  void* bias = nullptr;
  void* z = nullptr;
  const void* r = nullptr;
};

// One product at fixed shapes and types.
class BlasProduct {
 public:
  virtual ~BlasProduct() = default;
  // c = a b, plus c with `adds`. `workspace` has kBlasWorkspaceBytes, at a multiple of
  // kBlasWorkspaceAlignment. REQUIRES: no epilogue with `adds`.
  virtual absl::Status Run(StreamHandle stream, const void* a, const void* b, void* c, bool adds,
                           void* workspace, const EpiloguePointers& epilogue) = 0;
};

inline constexpr size_t kBlasWorkspaceBytes = size_t{32} << 20;
// What cuBLAS wants of a workspace's address; a plan promises less (kernels/kernel.h).
inline constexpr size_t kBlasWorkspaceAlignment = 256;

class Blas {
 public:
  virtual ~Blas() = default;
  // Null where the library has no algorithm for it. `alignment`: bytes that divide the addresses of
  // all matrices and vectors, as Run gets them. REQUIRES: a batch of 1 with an epilogue.
  virtual absl::StatusOr<std::unique_ptr<BlasProduct>> Create(const BlasLayout& layout,
                                                              const BlasTypes& types, int alignment,
                                                              BlasEpilogue epilogue) = 0;
};

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_BLAS_H_
