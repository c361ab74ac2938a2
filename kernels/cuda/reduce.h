// Launches of the kernels that fold many elements into each result. The order of folding is a
// function of the shapes alone; nothing is added up by atomic operations.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_REDUCE_H_
#define PENSTOCK_KERNELS_CUDA_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

inline constexpr int kMaxReduceDims = 8;

// Loops over results (kept) and over what is folded into each (reduced), outermost first; strides
// of the operand, in elements.
//
// Example: the sum over axis 1 of [2, 3, 4] has kept {2, 4} with strides {12, 1} and reduced {3}
// with stride 4. Its results are neighbours in the operand, so a warp works on 32 of them.
struct ReduceLoops {
  int32_t kept_rank = 0;
  int64_t kept_sizes[kMaxReduceDims] = {};
  int64_t kept_strides[kMaxReduceDims] = {};
  int32_t reduced_rank = 0;
  int64_t reduced_sizes[kMaxReduceDims] = {};
  int64_t reduced_strides[kMaxReduceDims] = {};

  int64_t num_results() const {
    int64_t product = 1;
    for (int i = 0; i < kept_rank; ++i) product *= kept_sizes[i];
    return product;
  }
  int64_t num_reduced() const {
    int64_t product = 1;
    for (int i = 0; i < reduced_rank; ++i) product *= reduced_sizes[i];
    return product;
  }
  // Whether the reduced elements are contiguous: then a block works on one result.
  bool has_rows() const { return reduced_rank > 0 && reduced_strides[reduced_rank - 1] == 1; }
  // Whether the results are the folds of the columns of a row-major matrix.
  bool is_matrix() const {
    return kept_rank == 1 && kept_strides[0] == 1 && reduced_rank == 1 &&
           reduced_strides[0] == kept_sizes[0];
  }
};

// Parts in which the terms of each result are folded by blocks of their own, where there are fewer
// results than would keep a device busy. More than 1 needs ReduceWorkspaceBytes of scratch.
int64_t NumReduceParts(const ReduceLoops& loops);
int64_t NumMatrixParts(int64_t rows, int64_t columns);
size_t ReduceWorkspaceBytes(const ReduceLoops& loops, size_t element_bytes);

enum class FoldOp { kSum, kMax };

// y[i] = the fold divided by `divisor`, plus y[i] with `adds`.
struct ReduceResult {
  double divisor = 1;
  bool adds = false;
};

// Operands T of 16 bits are added up in float; R: T, or float for those. T: float, double,
// BFloat16, Float16, int32_t or int64_t; integers wrap and have no divisor. The workspace holds
// what T is computed in.
template <typename T, typename R>
LaunchResult LaunchReduce(StreamHandle stream, FoldOp op, const ReduceLoops& loops,
                          const ReduceResult& result, const T* x, R* y, void* workspace);

// In what follows T is float, BFloat16 or Float16.

// y[i] = the sum of exp(x - max[i]).
template <typename T>
LaunchResult LaunchSumExp(StreamHandle stream, const ReduceLoops& loops, const ReduceResult& result,
                          const T* x, const T* max, float* y, void* workspace);
// Of matrices dy and x [rows, columns]: dscale[column] = the sum over rows of
// dy (x - mean[row]) rstd[row], dbias[column] = that of dy. `mean` may be null: 0; `dbias` may be
// null: not wanted.
template <typename T, typename R>
LaunchResult LaunchNormWeightGrad(StreamHandle stream, int64_t rows, int64_t columns,
                                  const ReduceResult& result, const T* dy, const T* x,
                                  const float* mean, const float* rstd, R* dscale, R* dbias,
                                  void* workspace);
size_t NormWeightGradWorkspaceBytes(int64_t rows, int64_t columns, bool has_bias);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_REDUCE_H_
