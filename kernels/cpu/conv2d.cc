#include "kernels/cpu/convolution.h"

namespace penstock::kernels {

KernelDef Conv2dKernel() { return ConvolutionDef(ConvolutionPass::kResult); }

}  // namespace penstock::kernels
