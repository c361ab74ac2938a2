#include "kernels/cpu/pooling.h"

namespace penstock::kernels {

KernelDef MaxPool2dGradKernel() { return PoolingDef(PoolingPass::kMaximumGradient); }

}  // namespace penstock::kernels
