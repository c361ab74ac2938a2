#include "kernels/cpu/epilogue.h"

namespace penstock::kernels {

KernelDef EinsumGeluGradKernel() { return EpilogueDef(); }

}  // namespace penstock::kernels
