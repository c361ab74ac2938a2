#include "kernels/cpu/reduce.h"

namespace penstock::kernels {
namespace {

// Divides by the global number of elements: a tile's result is its part of the mean.
struct MeanReduction : SumReduction {
  template <typename T>
  static T Finish(T sum, int64_t count) {
    return count > 0 ? static_cast<T>(sum / static_cast<T>(count)) : T{};
  }
};

}  // namespace

KernelDef ReduceMeanKernel() {
  KernelDef def = ElementwiseDef<ReduceKernel, Floats>(MeanReduction());
  def.can_alias = nullptr;
  def.supports_accumulate = true;
  return def;
}

}  // namespace penstock::kernels
