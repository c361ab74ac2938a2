// The parts of a state that some devices hold, each once however many of them hold it.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_ACTORS_SESSION_STATE_TILES_H_
#define PENSTOCK_ACTORS_SESSION_STATE_TILES_H_

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::actors {

// The placements that hold the same tile, as indices of the plan; in each list and by the first
// one's index they are in order.
using StateTile = std::vector<uint32_t>;

// Those on `num_devices` devices from `first_device` on.
std::vector<StateTile> StateTiles(const planner::StatePlan& state, uint32_t first_device,
                                  uint32_t num_devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_STATE_TILES_H_
