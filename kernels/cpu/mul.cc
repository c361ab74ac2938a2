#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef MulKernel() {
  return BinaryDef<NumbersAndBFloat16>([](auto x, auto y) { return Wrapping(x) * Wrapping(y); });
}

}  // namespace penstock::kernels
