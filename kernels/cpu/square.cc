#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SquareKernel() {
  return UnaryDef<Floats>([](auto x) { return x * x; });
}

}  // namespace penstock::kernels
