#include "kernels/cpu/pooling.h"

namespace penstock::kernels {

KernelDef AvgPool2dGradKernel() { return PoolingDef(PoolingPass::kMeanGradient); }

}  // namespace penstock::kernels
