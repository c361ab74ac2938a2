#include "kernels/contraction_indices.h"
#include "kernels/cpu/contraction_kernel.h"
#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {

KernelDef MatmulKernel() { return ContractionDef(MatmulIndices); }

}  // namespace penstock::kernels
