#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SigmoidKernel() {
  return UnaryDef<Floats>([](auto x) { return Sigmoid(x); });
}

}  // namespace penstock::kernels
