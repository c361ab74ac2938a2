#include <cmath>

#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef LogKernel() {
  return UnaryDef<Floats>([](auto x) { return PerLane(x, [](auto s) { return std::log(s); }); });
}

}  // namespace penstock::kernels
