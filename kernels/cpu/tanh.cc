#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef TanhKernel() {
  return UnaryDef<FloatsAndBFloat16>([](auto x) { return Tanh(x); });
}

}  // namespace penstock::kernels
