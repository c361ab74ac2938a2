// The launch of a contraction of two tensors without a matrix library: any strides and types, one
// thread a result. Products of floats that a library can do go to blas.h instead.
//
// Thread rule: a pure function but for the work that it gives to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_CONTRACTION_H_
#define PENSTOCK_KERNELS_CUDA_CONTRACTION_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

inline constexpr int kMaxLoops = 12;

// Loops over the results and over the terms of each; strides in elements, 0 where a tensor lacks
// the index.
struct ContractionLoops {
  int32_t num_kept = 0;
  int64_t kept_sizes[kMaxLoops] = {};
  int64_t kept_a[kMaxLoops] = {};
  int64_t kept_b[kMaxLoops] = {};
  int64_t kept_c[kMaxLoops] = {};
  int32_t num_summed = 0;
  int64_t summed_sizes[kMaxLoops] = {};
  int64_t summed_a[kMaxLoops] = {};
  int64_t summed_b[kMaxLoops] = {};
};

// c = the sum of a b, plus c with `adds`. Without `b` the other factor is 1. T: float, double,
// BFloat16, Float16, int32_t or int64_t; integers wrap. R: T, or float for a T of 16 bits.
template <typename T, typename R>
LaunchResult LaunchContraction(StreamHandle stream, const ContractionLoops& loops, const T* a,
                               const T* b, R* c, bool adds);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CONTRACTION_H_
