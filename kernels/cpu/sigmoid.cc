#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SigmoidKernel() {
  return UnaryDef<FloatsAndBFloat16>([](auto x) { return Sigmoid(x); });
}

}  // namespace penstock::kernels
