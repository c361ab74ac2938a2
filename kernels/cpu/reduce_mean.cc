#include "kernels/cpu/reduce.h"

namespace penstock::kernels {
namespace {

// Divides by the global number of elements: a tile's result is its part of the mean. The mean of
// nothing is NaN, as in NumPy and PyTorch.
struct MeanReduction : SumReduction {
  template <typename T>
  static T Finish(double sum, int64_t count) {
    return static_cast<T>(sum / static_cast<double>(count));
  }
};

}  // namespace

KernelDef ReduceMeanKernel() { return SumDef<FloatsAndBFloat16>(MeanReduction()); }

}  // namespace penstock::kernels
