#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef MaxKernel() {
  return BinaryDef<Natives>([](auto x, auto y) { return Max(x, y); });
}

}  // namespace penstock::kernels
