#include <limits>

#include "kernels/cpu/reduce.h"

namespace penstock::kernels {
namespace {

struct MaxReduction {
  static constexpr bool kIsSum = false;
  template <typename T>
  static T Initial() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  template <typename V>
  static auto Fold(V partial, V x) {
    return Max(partial, x);
  }
  template <typename V>
  static auto FoldLanes(V x) {
    return MaxLanes(x);
  }
  template <typename T>
  static T Finish(T max, int64_t /*count*/) {
    return max;
  }
};

}  // namespace

KernelDef ReduceMaxKernel() {
  KernelDef def = ElementwiseDef<ReduceKernel, NumbersAndHalves>(MaxReduction());
  def.can_alias = nullptr;
  return def;
}

}  // namespace penstock::kernels
