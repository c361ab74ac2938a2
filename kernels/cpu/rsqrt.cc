#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef RsqrtKernel() {
  return UnaryDef<Floats>([](auto x) { return 1 / Sqrt(x); });
}

}  // namespace penstock::kernels
