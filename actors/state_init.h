// Initial values of states. A value is a function of the seed, the state's stream and the global
// index of the element, so that every way to split a state starts from the same numbers.
//
// Thread rule: pure functions on memory of their own.

#ifndef PENSTOCK_ACTORS_STATE_INIT_H_
#define PENSTOCK_ACTORS_STATE_INIT_H_

#include <cstdint>

#include "planner/plan.h"

namespace penstock::actors {

// The step of draws that initialise: none that runs has it.
inline constexpr uint32_t kInitStep = 0xffffffff;

// Fills `tile`, the memory of one placement: zeros, ones, or std * RandomNormal(seed, stream).
// REQUIRES: the plan that holds them passed CheckPlan; memory of the tile's size.
void InitState(const planner::StatePlan& state, const planner::StatePlacement& placement,
               uint64_t seed, void* tile);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_STATE_INIT_H_
