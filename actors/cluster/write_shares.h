// Which process of a cluster writes which part of a checkpoint.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_CLUSTER_WRITE_SHARES_H_
#define PENSTOCK_ACTORS_CLUSTER_WRITE_SHARES_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "actors/cluster/device_range.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// A tile that a process has kept: both in the order of KeptTiles::Copy.
struct KeptTileId {
  uint32_t state = 0;
  uint32_t tile = 0;
  friend auto operator<=>(const KeptTileId&, const KeptTileId&) = default;
};

// The tiles that each process writes, in order, given the devices of each. Every tile of every
// state is written once, by the one of its holders that has the fewest bytes so far; all tiles of a
// state by one process where one has them all.
std::vector<std::vector<KeptTileId>> WriteShares(const std::vector<planner::StatePlan>& states,
                                                 const std::vector<DeviceRange>& devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_WRITE_SHARES_H_
