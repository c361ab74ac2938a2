#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef TanhKernel() {
  return UnaryDef<Floats>([](auto x) { return Tanh(x); });
}

}  // namespace penstock::kernels
