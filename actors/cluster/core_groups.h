// Which nodes of a job compete for cores, and how many cores they have.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_ACTORS_CLUSTER_CORE_GROUPS_H_
#define PENSTOCK_ACTORS_CLUSTER_CORE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "actors/cluster/node_description.h"

namespace penstock::actors {

// Nodes of one host that use the same cores, or a quota that is too small for all of them; most
// often a single node, on cores of its own.
struct CoreGroup {
  std::vector<size_t> nodes;  // indices, ascending
  int64_t num_cores = 0;      // that all of them can use at once
  int64_t num_devices = 0;    // of all of them
};

// Each node is in one group. Groups are in the order of their first nodes.
std::vector<CoreGroup> FindCoreGroups(absl::Span<const NodeDescription> nodes);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CORE_GROUPS_H_
