#include "kernels/cpu/bias.h"

namespace penstock::kernels {

KernelDef BiasAddKernel() {
  KernelDef def =
      BiasDef<NumbersAndBFloat16>([](auto x, auto b) { return Wrapping(x) + Wrapping(b); });
  def.can_alias = CanAliasBias;
  return def;
}

}  // namespace penstock::kernels
