#include <cmath>

#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef CosKernel() {
  return UnaryDef<Floats>([](auto x) { return PerLane(x, [](auto s) { return std::cos(s); }); });
}

}  // namespace penstock::kernels
