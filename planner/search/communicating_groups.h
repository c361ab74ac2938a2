// The groups of devices that communicate in a collective, and what it takes them.
//
// Thread rule: values and pure functions, but GroupsCache belongs to one thread at a time.

#ifndef PENSTOCK_PLANNER_SEARCH_COMMUNICATING_GROUPS_H_
#define PENSTOCK_PLANNER_SEARCH_COMMUNICATING_GROUPS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/collective.h"
#include "graph/graph.h"
#include "planner/cluster/group_shape.h"
#include "planner/search/machine.h"

namespace penstock::planner {

// How the groups of one collective lie: the different shapes of all that work at once.
struct CommunicatingGroups {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // of the collective
  std::vector<GroupShape> shapes;                    // each once
  GroupsAtOnce at_once;                              // of all groups of the collective
  std::vector<int64_t> crossing;  // CountCrossing of a permute that is a shift; else empty
};

// The groups of a collective that moves data over `axes` of the mesh, in each of `num_groups`
// groups of devices that have the mesh, one behind the other. `shift`: of a permute in which each
// member sends to the one so many places on (in a halo exchange to both neighbours, 1).
CommunicatingGroups GroupsOf(const Machine& machine, const graph::Mesh& mesh, CollectiveKind kind,
                             const std::vector<graph::AxisRef>& axes, int num_groups,
                             std::optional<int64_t> shift = std::nullopt);

// Groups that were found before: the works of many strategies on one machine have the same.
class GroupsCache {
 public:
  // As GroupsOf. Valid as long as this object. REQUIRES: the machine is the same in all calls.
  const CommunicatingGroups& Find(const Machine& machine, const graph::Mesh& mesh,
                                  CollectiveKind kind, const std::vector<graph::AxisRef>& axes,
                                  int num_groups, std::optional<int64_t> shift);

 private:
  std::map<std::vector<int64_t>, CommunicatingGroups> groups_;
};

// Of the slowest group.
double PredictSeconds(const Machine& machine, const CommunicatingGroups& groups, double num_bytes);

// Machine::CoreShare of the outermost level at which members of a group meet.
double CoreShare(const Machine& machine, const CommunicatingGroups& groups);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_COMMUNICATING_GROUPS_H_
