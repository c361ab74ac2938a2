#include "kernels/cuda/routing.h"
#include "kernels/cuda/scatter.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// Where a choice goes in the tile; expert < 0 if another tile holds its place, or it has none.
struct SlotOf {
  int64_t expert = -1;
  int64_t place = 0;
};
__device__ SlotOf FindSlot(const RoutingShape& s, int64_t choice) {
  const int64_t slot = LoadIndex(s.slots, choice);
  if (slot < 0 || slot >= s.global_experts * s.global_capacity) return {};
  const int64_t expert = slot / s.global_capacity - s.first_expert;
  const int64_t place = slot % s.global_capacity - s.first_place;
  if (expert < 0 || expert >= s.experts || place < 0 || place >= s.capacity) return {};
  return {expert, place};
}

// Its row, numbered over all groups, or -1.
__device__ int64_t RowOf(const RoutingShape& s, int64_t choice) {
  const SlotOf slot = FindSlot(s, choice);
  if (slot.expert < 0) return -1;
  const int64_t group = choice / (s.tokens * s.choices);
  return (slot.expert * s.groups + group) * s.capacity + slot.place;
}

// See ScatterLaunch: the places of all experts for one group are a table, the group's choices its
// indices.
template <typename T>
__global__ void __launch_bounds__(kScatterThreads)
    DispatchKernel(RoutingShape s, int rows_a_block, int64_t parts_a_group, const T* x,
                   const T* weights, T* y) {
  __shared__ float sums[kMaxScatterRows][kScatterThreads];
  const int own = static_cast<int>(threadIdx.x);
  const int64_t column = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t choices_a_group = s.tokens * s.choices;
  for (int64_t part = blockIdx.x; part < s.groups * parts_a_group; part += gridDim.x) {
    const int64_t group = part / parts_a_group;
    const int64_t first_row = part % parts_a_group * rows_a_block;
    const int64_t first = group * choices_a_group;
    for (int r = 0; r < rows_a_block; ++r) sums[r][own] = 0;
    const auto find = [&](int64_t i, int64_t step, int(&rows)[kScatterIndices]) {
      for (int k = 0; k < kScatterIndices; ++k) {
        rows[k] = -1;
        if (i + k * step >= choices_a_group) continue;
        const SlotOf slot = FindSlot(s, first + i + k * step);
        const int64_t row = slot.expert * s.capacity + slot.place - first_row;
        if (slot.expert >= 0 && row >= 0 && row < rows_a_block) rows[k] = static_cast<int>(row);
      }
    };
    const auto load = [&](int64_t i) {
      const int64_t choice = first + i;
      const float weight = weights != nullptr ? Widen(weights[choice]) : 1.0f;
      return Widen(x[choice / s.choices * s.width + column]) * weight;
    };
    ScatterAdd(choices_a_group, column < s.width, find, load, sums);
    if (column >= s.width) continue;
    for (int r = 0; r < rows_a_block && first_row + r < s.experts * s.capacity; ++r) {
      const int64_t expert = (first_row + r) / s.capacity;
      const int64_t place = (first_row + r) % s.capacity;
      y[((expert * s.groups + group) * s.capacity + place) * s.width + column] =
          Narrow<T>(sums[r][own]);
    }
  }
}

template <typename T>
__global__ void CombineKernel(RoutingShape s, int64_t count, const T* y, const T* weights, T* z) {
  for (int64_t at = ThreadIndex(); at < count; at += ThreadCount()) {
    const int64_t column = at % s.width;
    const int64_t token = at / s.width;
    float sum = 0;
    for (int64_t i = token * s.choices; i < (token + 1) * s.choices; ++i) {
      const int64_t row = RowOf(s, i);
      if (row < 0) continue;
      sum += Widen(y[row * s.width + column]) * (weights != nullptr ? Widen(weights[i]) : 1.0f);
    }
    z[at] = Narrow<T>(sum);
  }
}

// A warp a choice.
template <typename T>
__global__ void CombineWeightGradKernel(RoutingShape s, int64_t count, const T* x, const T* y,
                                        T* dweights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t i = ThreadIndex() / kWarp; i < count; i += ThreadCount() / kWarp) {
    const int64_t row = RowOf(s, i);
    float sum = 0;
    for (int64_t j = lane; j < s.width && row >= 0; j += kWarp) {
      sum += Widen(x[i / s.choices * s.width + j]) * Widen(y[row * s.width + j]);
    }
    sum = ReduceWarp(sum, SumOp());
    if (lane == 0) dweights[i] = Narrow<T>(sum);
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
template <typename T>
__global__ void TopKKernel(int64_t rows, int64_t size, int64_t k, const T* x, T* values,
                           int64_t* indices) {
  for (int64_t row = ThreadIndex(); row < rows; row += ThreadCount()) {
    const T* from = x + row * size;
    int64_t last = -1;
    for (int64_t j = 0; j < k; ++j) {
      int64_t best = -1;
      for (int64_t i = 0; i < size; ++i) {
        const float value = Widen(from[i]);
        const bool is_taken = last >= 0 && (IsLarger(value, Widen(from[last])) ||
                                            (!IsLarger(Widen(from[last]), value) && i <= last));
        if (!is_taken && (best < 0 || IsLarger(value, Widen(from[best])))) best = i;
      }
      values[row * k + j] = from[best];
      indices[row * k + j] = best;
      last = best;
    }
  }
}

}  // namespace

template <typename T>
LaunchResult LaunchDispatch(StreamHandle stream, const RoutingShape& shape, const T* x,
                            const T* weights, T* y) {
  const int64_t rows = shape.experts * shape.capacity;  // of a group
  if (rows * shape.groups == 0 || shape.width == 0) return 0;
  const ScatterLaunch launch = ScatterLaunchOf(shape.groups, rows, shape.width);
  return Launch(&DispatchKernel<T>, launch.shape, stream, shape, launch.rows,
                CeilDiv(rows, launch.rows), x, weights, y);
}

template <typename T>
LaunchResult LaunchCombine(StreamHandle stream, const RoutingShape& shape, const T* y,
                           const T* weights, T* z) {
  const int64_t count = shape.groups * shape.tokens * shape.width;
  if (count == 0) return 0;
  return Launch(&CombineKernel<T>, ShapeForLoop(count), stream, shape, count, y, weights, z);
}

template <typename T>
LaunchResult LaunchCombineWeightGrad(StreamHandle stream, const RoutingShape& shape, const T* x,
                                     const T* y, T* dweights) {
  const int64_t count = shape.num_choices();
  if (count == 0) return 0;
  return Launch(&CombineWeightGradKernel<T>, ShapeForLoop(count * kWarp), stream, shape, count, x,
                y, dweights);
}

LaunchResult LaunchExpertSlots(StreamHandle stream, const ExpertSlotsParams& params, int64_t* slots,
                               int64_t* load) {
  const int64_t count = params.groups * params.experts;
  if (count == 0) return 0;
  return Launch(&ExpertSlotsKernel, ShapeForLoop(count), stream, params, slots, load);
}

template <typename T>
LaunchResult LaunchTopK(StreamHandle stream, int64_t rows, int64_t size, int64_t k, const T* x,
                        T* values, int64_t* indices) {
  if (rows == 0 || k == 0) return 0;
  return Launch(&TopKKernel<T>, ShapeForLoop(rows), stream, rows, size, k, x, values, indices);
}

// ---- Instances.

template LaunchResult LaunchDispatch(StreamHandle, const RoutingShape&, const float*, const float*,
                                     float*);
template LaunchResult LaunchDispatch(StreamHandle, const RoutingShape&, const BFloat16*,
                                     const BFloat16*, BFloat16*);
template LaunchResult LaunchDispatch(StreamHandle, const RoutingShape&, const Float16*,
                                     const Float16*, Float16*);

template LaunchResult LaunchCombine(StreamHandle, const RoutingShape&, const float*, const float*,
                                    float*);
template LaunchResult LaunchCombine(StreamHandle, const RoutingShape&, const BFloat16*,
                                    const BFloat16*, BFloat16*);
template LaunchResult LaunchCombine(StreamHandle, const RoutingShape&, const Float16*,
                                    const Float16*, Float16*);

template LaunchResult LaunchCombineWeightGrad(StreamHandle, const RoutingShape&, const float*,
                                              const float*, float*);
template LaunchResult LaunchCombineWeightGrad(StreamHandle, const RoutingShape&, const BFloat16*,
                                              const BFloat16*, BFloat16*);
template LaunchResult LaunchCombineWeightGrad(StreamHandle, const RoutingShape&, const Float16*,
                                              const Float16*, Float16*);

template LaunchResult LaunchTopK(StreamHandle, int64_t, int64_t, int64_t, const float*, float*,
                                 int64_t*);
template LaunchResult LaunchTopK(StreamHandle, int64_t, int64_t, int64_t, const BFloat16*,
                                 BFloat16*, int64_t*);
template LaunchResult LaunchTopK(StreamHandle, int64_t, int64_t, int64_t, const Float16*, Float16*,
                                 int64_t*);

}  // namespace penstock::kernels::cuda
