#include "kernels/cpu/epilogue.h"

namespace penstock::kernels {

KernelDef EinsumBiasGradKernel() {
  KernelDef def = EpilogueDef();
  def.supports_accumulate = true;
  return def;
}

}  // namespace penstock::kernels
