// Launches of the kernels of mixtures of experts: see graph/ops/routing.h for what slots and places
// are. Sums have the order of the choices. T: float, BFloat16 or Float16.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_ROUTING_H_
#define PENSTOCK_KERNELS_CUDA_ROUTING_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// The tiles of slots [groups, tokens, choices] and of places [experts, groups, capacity, width]. A
// row of places is one place.
struct RoutingShape {
  int64_t groups = 1;
  int64_t tokens = 0;   // of a group
  int64_t choices = 0;  // of a token
  int64_t experts = 0;  // of the tile, as capacity
  int64_t capacity = 0;
  int64_t width = 0;
  int64_t first_expert = 0;
  int64_t first_place = 0;
  int64_t global_experts = 0;
  int64_t global_capacity = 0;
  Indices slots;

  int64_t num_choices() const { return groups * tokens * choices; }
};

// y[row] = the sum of the tokens whose slots are that place; `weights`, one a choice, may be null.
template <typename T>
LaunchResult LaunchDispatch(StreamHandle stream, const RoutingShape& shape, const T* x,
                            const T* weights, T* y);
// z[token] = the sum of its places.
template <typename T>
LaunchResult LaunchCombine(StreamHandle stream, const RoutingShape& shape, const T* y,
                           const T* weights, T* z);
// dweights[choice] = the product of its token and its place, 0 for none.
template <typename T>
LaunchResult LaunchCombineWeightGrad(StreamHandle stream, const RoutingShape& shape, const T* x,
                                     const T* y, T* dweights);

// Places for choices [groups, tokens, choices]: first choices of all tokens first. `load` [groups,
// experts] may be null. Choices outside [0, experts) are reported and get none.
struct ExpertSlotsParams {
  int64_t groups = 1;
  int64_t tokens = 0;
  int64_t choices = 0;
  int64_t experts = 0;
  int64_t capacity = 0;
  Indices chosen;
  FaultSite site;
};
LaunchResult LaunchExpertSlots(StreamHandle stream, const ExpertSlotsParams& params, int64_t* slots,
                               int64_t* load);

// The k largest elements of each row, in order; a NaN is larger than any number.
template <typename T>
LaunchResult LaunchTopK(StreamHandle stream, int64_t rows, int64_t size, int64_t k, const T* x,
                        T* values, int64_t* indices);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_ROUTING_H_
