#include <cmath>

#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef SinKernel() {
  return UnaryDef<Floats>([](auto x) { return PerLane(x, [](auto s) { return std::sin(s); }); });
}

}  // namespace penstock::kernels
