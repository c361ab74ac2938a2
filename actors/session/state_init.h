// Initial values of states. A value is a function of the seed, the state's stream and the global
// index of the element, so that every way to split a state starts from the same numbers.
//
// Thread rule: pure functions on memory of their own.

#ifndef PENSTOCK_ACTORS_SESSION_STATE_INIT_H_
#define PENSTOCK_ACTORS_SESSION_STATE_INIT_H_

#include <cstddef>
#include <cstdint>

#include "planner/plan/plan.h"

namespace penstock::actors {

// The step of draws that initialise: none that runs has it.
inline constexpr uint32_t kInitStep = 0xffffffff;

// Fills `bytes` with `size` bytes of one placement's tile from `offset` on: zeros, ones, or
// std * RandomNormal(seed, stream). REQUIRES: the plan that holds them passed CheckPlan; the range
// lies in the tile and consists of whole elements.
void InitState(const planner::StatePlan& state, const planner::StatePlacement& placement,
               uint64_t seed, uint64_t offset, size_t size, void* bytes);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_STATE_INIT_H_
