// Kernels of products with an epilogue: einsum, then what follows it in place. They are there for
// plans that are made for GPUs too; on a CPU they save nothing.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_EPILOGUE_H_
#define PENSTOCK_KERNELS_CPU_EPILOGUE_H_

#include "kernels/kernel.h"

namespace penstock::kernels {

// Of any of einsum_bias, einsum_bias_gelu, einsum_gelu_grad and einsum_bias_grad.
KernelDef EpilogueDef();

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_EPILOGUE_H_
