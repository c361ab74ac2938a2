// Scalar operands such as learning rates.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_SCALAR_H_
#define PENSTOCK_KERNELS_CPU_SCALAR_H_

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {

// Operand `i`, f32[] or f64[], as a double.
inline double ReadScalar(const KernelSpec& spec, const KernelArgs& args, int i) {
  return spec.inputs[i].dtype == DType::kF64 ? *Input<double>(args, i)
                                             : static_cast<double>(*Input<float>(args, i));
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_SCALAR_H_
