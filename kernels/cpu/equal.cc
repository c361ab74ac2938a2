#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef EqualKernel() {
  return CompareDef([](auto x, auto y) { return x == y; });
}

}  // namespace penstock::kernels
