// The orders in which the groups of devices of a pipeline may run its stages.
//
// It matters which group comes first where groups differ: the first stages keep most micro-batches
// in flight, the last one has the head. Groups are alike if they have the same kinds of devices,
// are joined by the same level of the network and share cores alike; which of several alike ones
// comes first makes no difference, and they stay in their order, in which neighbours are near each
// other.
//
// Example: of groups of the kinds a, a, b the orders are a a b, a b a and b a a: {0, 1, 2},
// {0, 2, 1} and {2, 0, 1}.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_ARRANGE_GROUPS_H_
#define PENSTOCK_PLANNER_SEARCH_ARRANGE_GROUPS_H_

#include <cstdint>
#include <vector>

#include "planner/search/machine.h"

namespace penstock::planner {

// If there are more orders, at most this many are tried, of those that keep alike groups together.
inline constexpr int kMaxArrangements = 24;

// Of `num_groups` groups of consecutive devices, each place's group; their own order comes first.
// REQUIRES: the machine has the devices.
std::vector<std::vector<int>> ArrangeGroups(const Machine& machine, int64_t devices_per_group,
                                            int num_groups);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_ARRANGE_GROUPS_H_
