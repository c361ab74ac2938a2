#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SiluKernel() {
  return UnaryDef<Floats>([](auto x) { return x * Sigmoid(x); });
}

}  // namespace penstock::kernels
