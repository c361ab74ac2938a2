#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef AbsKernel() {
  return UnaryDef<Numbers>([](auto x) {
    if constexpr (std::is_integral_v<decltype(x)>) {
      return x < 0 ? 0 - Wrapping(x) : Wrapping(x);
    } else {
      return Abs(x);
    }
  });
}

}  // namespace penstock::kernels
