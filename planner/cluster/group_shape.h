// How a group of devices lies in a cluster: all that the costs of its communication depend on. A
// shape is found once for each group; costs are then formulas that do not look at devices.
//
// Example: in two nodes of 8 devices, the group {0, 1, 8, 9} has 4 children with 1 member each at
// level 0 (devices), and 2 children with 2 members each at level 1 (nodes).
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_GROUP_SHAPE_H_
#define PENSTOCK_PLANNER_CLUSTER_GROUP_SHAPE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::planner {

// How a group lies in the torus of level 0. Where it lies in several, the worst of each figure.
struct TorusShape {
  // The members' coordinates along one dimension of the torus.
  struct Dimension {
    int64_t members = 1;  // different coordinates
    int64_t stride = 1;   // links between neighbouring members
    bool wraps = false;   // members are on the whole ring, so both directions lead around it

    friend bool operator==(const Dimension&, const Dimension&) = default;
  };
  std::vector<Dimension> dimensions;  // those with more than one member
  bool is_box = false;                // the members are all combinations of the coordinates
  int64_t diameter = 0;               // links between the members that are farthest apart
  int64_t ring_links = 0;             // links of the longest edge of a ring in order of devices
  double ring_load = 0;               // edges of that ring that share the busiest link
  double direct_load = 0;             // pairs of the enclosing box that share the busiest link

  friend bool operator==(const TorusShape&, const TorusShape&) = default;
};

// All that costs depend on of where a group is.
struct GroupShape {
  // The children of the group's network at one level.
  struct Level {
    int64_t num_children = 0;                // that have members
    std::vector<int64_t> members_per_child;  // the different numbers, increasing

    friend bool operator==(const Level&, const Level&) = default;
  };
  int64_t num_members = 1;          // devices of the group
  std::vector<Level> levels;        // up to the level at which all meet; empty: one member
  std::optional<TorusShape> torus;  // none where no two members are in one torus

  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

// `devices` in any order. REQUIRES: there is one at least, all are devices of the cluster, and none
// is named twice.
GroupShape ShapeOf(const Cluster& cluster, absl::Span<const int64_t> devices);

// By level: how many groups communicate at once through the uplinks of one child. Levels beyond the
// end have one.
using GroupsAtOnce = std::vector<int64_t>;

// For groups that run a collective each at the same time, such as all groups of a mesh axis: the
// largest number of groups that have members both inside and outside of one child.
GroupsAtOnce CountGroupsAtOnce(const Cluster& cluster,
                               absl::Span<const std::vector<int64_t>> groups);

// A message: the devices that send and receive it.
using MessageEnds = std::pair<int64_t, int64_t>;

// For messages that are sent at the same time, by level: the most that leave, or enter, one child.
// Those of a device to itself do not count. Example: in two nodes of 8 devices, device i sends to
// i + 1 and the last one to the first: {1, 1}, as one message leaves each node.
std::vector<int64_t> CountCrossing(const Cluster& cluster, absl::Span<const MessageEnds> messages);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_GROUP_SHAPE_H_
