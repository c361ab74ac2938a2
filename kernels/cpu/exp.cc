#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef ExpKernel() {
  return UnaryDef<Floats>([](auto x) { return Exp(x); });
}

}  // namespace penstock::kernels
