#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef MinKernel() {
  return BinaryDef<Natives>([](auto x, auto y) { return (x < y) | (x != x) ? x : y; });
}

}  // namespace penstock::kernels
