// Which products with an epilogue the library computes in one launch: those of one matrix product
// whose vector is a row or a column of it, and whose matrices lie as it does.
//
// Example: einsum_bias "bsd,dchk->bschk" with b[c, h, k] is the row-major product [b*s, d] x
// [d, c*h*k], so the column-major one with chk rows, and b is one of its columns. A fourth operand
// r[b, s, c, h, k] is a matrix like the product.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CUDA_EPILOGUE_PLAN_H_
#define PENSTOCK_KERNELS_CUDA_EPILOGUE_PLAN_H_

#include <optional>

#include "kernels/cuda/blas.h"
#include "kernels/kernel.h"

namespace penstock::kernels::cuda {

struct EpiloguePlan {
  BlasLayout layout;
  BlasTypes types;
  BlasEpilogue epilogue = BlasEpilogue::kNone;
  int alignment = 1;  // bytes that have to divide all addresses
};

// Of einsum_bias, einsum_bias_gelu or einsum_gelu_grad. None: it takes several launches, or they
// are faster.
std::optional<EpiloguePlan> PlanEpilogue(const KernelSpec& spec);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_EPILOGUE_PLAN_H_
