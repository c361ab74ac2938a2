#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SqrtKernel() {
  return UnaryDef<Floats>([](auto x) { return Sqrt(x); });
}

}  // namespace penstock::kernels
