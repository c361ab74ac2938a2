#include "kernels/cuda/routing.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// The row of the slot of a choice, numbered over all groups, or -1 if another tile holds it, or
// none.
__device__ int64_t RowOf(const RoutingShape& s, int64_t choice) {
  const int64_t slot = LoadIndex(s.slots, choice);
  if (slot < 0 || slot >= s.global_experts * s.global_capacity) return -1;
  const int64_t expert = slot / s.global_capacity - s.first_expert;
  const int64_t place = slot % s.global_capacity - s.first_place;
  if (expert < 0 || expert >= s.experts || place < 0 || place >= s.capacity) return -1;
  const int64_t group = choice / (s.tokens * s.choices);
  return (expert * s.groups + group) * s.capacity + place;
}

// A block for each row and as many columns as it has threads, which look together for the choices
// of the row, a chunk of those of its group at a time.
__global__ void DispatchKernel(RoutingShape s, int64_t num_rows, const float* x,
                               const float* weights, float* y) {
  __shared__ int is_match[kMaxThreads];
  const int64_t column = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t choices_a_group = s.tokens * s.choices;
  for (int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    const int64_t first = row / s.capacity % s.groups * choices_a_group;
    float sum = 0;
    for (int64_t begin = 0; begin < choices_a_group; begin += blockDim.x) {
      const int64_t i = begin + threadIdx.x;
      const bool matches = i < choices_a_group && RowOf(s, first + i) == row;
      is_match[threadIdx.x] = matches ? 1 : 0;
      const bool has_matches = __syncthreads_or(matches ? 1 : 0) != 0;
      if (has_matches && column < s.width) {
        for (int j = 0; j < static_cast<int>(blockDim.x); ++j) {
          if (is_match[j] == 0) continue;
          const int64_t choice = first + begin + j;
          const float weight = weights != nullptr ? weights[choice] : 1.0f;
          sum += x[choice / s.choices * s.width + column] * weight;
        }
      }
      __syncthreads();
    }
    if (column < s.width) y[row * s.width + column] = sum;
  }
}

__global__ void CombineKernel(RoutingShape s, int64_t count, const float* y, const float* weights,
                              float* z) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.width;
    const int64_t token = at / s.width;
    float sum = 0;
    for (int64_t i = token * s.choices; i < (token + 1) * s.choices; ++i) {
      const int64_t row = RowOf(s, i);
      if (row < 0) continue;
      sum += y[row * s.width + column] * (weights != nullptr ? weights[i] : 1.0f);
    }
    z[at] = sum;
  }
}

// A warp a choice.
__global__ void CombineWeightGradKernel(RoutingShape s, int64_t count, const float* x,
                                        const float* y, float* dweights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t i = ThreadIndex() / kWarp; i < count; i += ThreadCount() / kWarp) {
    const int64_t row = RowOf(s, i);
    float sum = 0;
    for (int64_t j = lane; j < s.width && row >= 0; j += kWarp) {
      sum += x[i / s.choices * s.width + j] * y[row * s.width + j];
    }
    sum = ReduceWarp(sum, SumOp());
    if (lane == 0) dweights[i] = sum;
  }
}

// A thread for each expert of each group, which goes through all choices of the group.
__global__ void ExpertSlotsKernel(ExpertSlotsParams p, int64_t* slots, int64_t* load) {
  for (int64_t at = ThreadIndex(); at < p.groups * p.experts; at += ThreadCount()) {
    const int64_t expert = at % p.experts;
    const int64_t first = at / p.experts * p.tokens * p.choices;
    int64_t num_chosen = 0;
    for (int64_t j = 0; j < p.choices; ++j) {
      for (int64_t token = 0; token < p.tokens; ++token) {
        const int64_t i = first + token * p.choices + j;
        const int64_t chosen = LoadIndex(p.chosen, i);
        if (expert == 0 && !CheckIndex(p.site, chosen, p.experts)) slots[i] = -1;
        if (chosen != expert) continue;
        slots[i] = num_chosen < p.capacity ? expert * p.capacity + num_chosen : -1;
        ++num_chosen;
      }
    }
    if (load != nullptr) load[at] = num_chosen;
  }
}

__device__ bool IsLarger(float x, float y) { return x > y || (x != x && y == y); }

// A thread a row: each choice is the largest element that comes after the one before.
__global__ void TopKKernel(int64_t rows, int64_t size, int64_t k, const float* x, float* values,
                           int64_t* indices) {
  for (int64_t row = ThreadIndex(); row < rows; row += ThreadCount()) {
    const float* from = x + row * size;
    int64_t last = -1;
    for (int64_t j = 0; j < k; ++j) {
      int64_t best = -1;
      for (int64_t i = 0; i < size; ++i) {
        const bool is_taken = last >= 0 && (IsLarger(from[i], from[last]) ||
                                            (!IsLarger(from[last], from[i]) && i <= last));
        if (!is_taken && (best < 0 || IsLarger(from[i], from[best]))) best = i;
      }
      values[row * k + j] = from[best];
      indices[row * k + j] = best;
      last = best;
    }
  }
}

}  // namespace

LaunchResult LaunchDispatch(StreamHandle stream, const RoutingShape& shape, const float* x,
                            const float* weights, float* y) {
  const int64_t rows = shape.experts * shape.groups * shape.capacity;
  if (rows == 0 || shape.width == 0) return 0;
  LaunchShape launch = ShapeForRows(rows, shape.width);
  if (launch.threads_x > 256) launch.threads_x = 256;
  const int64_t column_blocks = CeilDiv(shape.width, launch.threads_x);
  if (column_blocks > kMaxGridY) return 9;  // cudaErrorInvalidConfiguration
  launch.grid_y = static_cast<unsigned>(column_blocks);
  return Launch(&DispatchKernel, launch, stream, shape, rows, x, weights, y);
}

LaunchResult LaunchCombine(StreamHandle stream, const RoutingShape& shape, const float* y,
                           const float* weights, float* z) {
  const int64_t count = shape.groups * shape.tokens * shape.width;
  if (count == 0) return 0;
  return Launch(&CombineKernel, ShapeForLoop(count), stream, shape, count, y, weights, z);
}

LaunchResult LaunchCombineWeightGrad(StreamHandle stream, const RoutingShape& shape, const float* x,
                                     const float* y, float* dweights) {
  const int64_t count = shape.num_choices();
  if (count == 0) return 0;
  return Launch(&CombineWeightGradKernel, ShapeForLoop(count * kWarp), stream, shape, count, x, y,
                dweights);
}

LaunchResult LaunchExpertSlots(StreamHandle stream, const ExpertSlotsParams& params, int64_t* slots,
                               int64_t* load) {
  const int64_t count = params.groups * params.experts;
  if (count == 0) return 0;
  return Launch(&ExpertSlotsKernel, ShapeForLoop(count), stream, params, slots, load);
}

LaunchResult LaunchTopK(StreamHandle stream, int64_t rows, int64_t size, int64_t k, const float* x,
                        float* values, int64_t* indices) {
  if (rows == 0 || k == 0) return 0;
  return Launch(&TopKKernel, ShapeForLoop(rows), stream, rows, size, k, x, values, indices);
}

}  // namespace penstock::kernels::cuda
