#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef ReluKernel() {
  return UnaryDef<NumbersAndBFloat16>([](auto x) { return x < decltype(x){} ? decltype(x){} : x; });
}

}  // namespace penstock::kernels
