#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef DivKernel() {
  return BinaryDef<Numbers>([](auto x, auto y) {
    if constexpr (std::is_integral_v<decltype(x)>) {
      // Division by zero gives 0, and by -1 wraps: data must not trap.
      if (y == 0) return decltype(x){0};
      if (std::is_signed_v<decltype(x)> && y == static_cast<decltype(y)>(-1)) {
        return static_cast<decltype(x)>(0 - Wrapping(x));
      }
      return static_cast<decltype(x)>(x / y);
    } else {
      return x / y;
    }
  });
}

}  // namespace penstock::kernels
