#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SiluKernel() {
  return UnaryDef<FloatsAndBFloat16>([](auto x) { return x / (1 + Exp(decltype(x){} - x)); });
}

}  // namespace penstock::kernels
