// The four passes of poolings over planes {h, w} of images: the maximum or the mean of each window,
// and the gradients of both. f32 runs in oneDNN, a few planes at a time, so that they stay in the
// cache; other floats, and planes whose maximum oneDNN would miss, run in loops.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_POOLING_H_
#define PENSTOCK_KERNELS_CPU_POOLING_H_

#include <array>
#include <cstdint>

#include "graph/image_window.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// The operands are x, x and dy, x, dy.
enum class PoolingPass : uint8_t { kMaximum, kMaximumGradient, kMean, kMeanGradient };

inline bool IsMaximum(PoolingPass pass) {
  return pass == PoolingPass::kMaximum || pass == PoolingPass::kMaximumGradient;
}
inline bool IsGradient(PoolingPass pass) {
  return pass == PoolingPass::kMaximumGradient || pass == PoolingPass::kMeanGradient;
}

// x[num_planes, in] and y[num_planes, out], row-major.
struct PoolingShape {
  int64_t num_planes = 0;
  std::array<int64_t, 2> in = {0, 0};
  std::array<int64_t, 2> out = {0, 0};
  graph::ImageWindow window;  // without dilation

  // Elements of a plane of x and of y.
  int64_t in_size() const { return in[0] * in[1]; }
  int64_t out_size() const { return out[0] * out[1]; }
};

// The kernel of the pass.
KernelDef PoolingDef(PoolingPass pass);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_POOLING_H_
