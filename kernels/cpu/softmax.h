// How softmax and its gradient see a tensor: [outer, n, inner], normalised over n.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_SOFTMAX_H_
#define PENSTOCK_KERNELS_CPU_SOFTMAX_H_

#include <cstdint>

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {

struct SoftmaxShape {
  explicit SoftmaxShape(const KernelSpec& spec) {
    const TileDesc& tile = spec.inputs[0];
    const int axis = NormalizeAxis(spec.attributes.GetInt("axis", -1), Rank(tile));
    for (int i = 0; i < Rank(tile); ++i) {
      (i < axis ? outer : i == axis ? n : inner) *= tile.shape[i];
    }
  }

  int64_t outer = 1;
  int64_t n = 1;
  int64_t inner = 1;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_SOFTMAX_H_
