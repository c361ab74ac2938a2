#include "kernels/cpu/reduce.h"

namespace penstock::kernels {

KernelDef ReduceSumKernel() { return SumDef<NumbersAndBFloat16>(SumReduction()); }

}  // namespace penstock::kernels
