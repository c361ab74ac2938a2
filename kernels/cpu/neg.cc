#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef NegKernel() {
  return UnaryDef<Numbers>([](auto x) {
    if constexpr (std::is_integral_v<decltype(x)>) {
      return 0 - Wrapping(x);
    } else {
      return -x;
    }
  });
}

}  // namespace penstock::kernels
