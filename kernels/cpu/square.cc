#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SquareKernel() {
  return UnaryDef<Numbers>([](auto x) { return Wrapping(x) * Wrapping(x); });
}

}  // namespace penstock::kernels
