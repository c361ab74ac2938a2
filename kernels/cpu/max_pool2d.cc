#include "kernels/cpu/pooling.h"

namespace penstock::kernels {

KernelDef MaxPool2dKernel() { return PoolingDef(PoolingPass::kMaximum); }

}  // namespace penstock::kernels
