// The three passes of conv2d over tiles: the result, the gradient of the images and that of the
// weights. f32, and bf16 where the processor computes in it, run in oneDNN, each thread on its part
// of the batch; other floats run in loops.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_CONVOLUTION_H_
#define PENSTOCK_KERNELS_CPU_CONVOLUTION_H_

#include <array>
#include <cstdint>

#include "graph/image_window.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// The operands are x and w, w and dy, x and dy.
enum class ConvolutionPass : uint8_t { kResult, kInputGradient, kWeightGradient };

// x[n, groups * c, in], w[groups * o, c, taps] and y[n, groups * o, out], all row-major.
struct ConvolutionShape {
  int64_t n = 0;
  int64_t groups = 1;
  int64_t c = 0;  // input channels of a group
  int64_t o = 0;  // output channels of a group
  std::array<int64_t, 2> in = {0, 0};
  std::array<int64_t, 2> out = {0, 0};
  graph::ImageWindow window;

  // Elements of the three tensors.
  int64_t x_size() const { return n * groups * c * in[0] * in[1]; }
  int64_t w_size() const { return groups * o * c * window[0].taps * window[1].taps; }
  int64_t y_size() const { return n * groups * o * out[0] * out[1]; }
};

KernelDef ConvolutionDef(ConvolutionPass pass);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_CONVOLUTION_H_
