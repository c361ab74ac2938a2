#include "kernels/cpu/reduce.h"

namespace penstock::kernels {

KernelDef ReduceSumKernel() {
  KernelDef def = ElementwiseDef<ReduceKernel, Numbers>(SumReduction());
  def.can_alias = nullptr;
  def.supports_accumulate = true;
  return def;
}

}  // namespace penstock::kernels
