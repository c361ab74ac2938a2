// The kernel around a Contraction of operands 0 and 1, for matmul and einsum.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_CONTRACTION_KERNEL_H_
#define PENSTOCK_KERNELS_CPU_CONTRACTION_KERNEL_H_

#include <vector>

#include "absl/status/statusor.h"

#include "kernels/cpu/contraction.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// The indices of a spec's contraction; an error for attributes that do not fit the shapes.
using IndicesOf = absl::StatusOr<std::vector<ContractionIndex>> (*)(const KernelSpec&);

// With a single operand the other is the number 1.
KernelDef ContractionDef(IndicesOf indices_of);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_CONTRACTION_KERNEL_H_
