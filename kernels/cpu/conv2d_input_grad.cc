#include "kernels/cpu/convolution.h"

namespace penstock::kernels {

KernelDef Conv2dInputGradKernel() { return ConvolutionDef(ConvolutionPass::kInputGradient); }

}  // namespace penstock::kernels
