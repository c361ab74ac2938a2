#include "kernels/cpu/convolution.h"

namespace penstock::kernels {

KernelDef Conv2dWeightGradKernel() { return ConvolutionDef(ConvolutionPass::kWeightGradient); }

}  // namespace penstock::kernels
