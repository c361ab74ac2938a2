#include "kernels/cpu/pooling.h"

namespace penstock::kernels {

KernelDef AvgPool2dKernel() { return PoolingDef(PoolingPass::kMean); }

}  // namespace penstock::kernels
