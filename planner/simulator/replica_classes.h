// Which devices of a plan do the same at the same times, so that one of them can stand for all in
// a simulation.
//
// Classes are found by refinement. At first, devices of one program and kind are alike. Then groups
// of devices that communicate are told apart by the classes of their members, by how they lie in
// the cluster and by who else uses their links, links by the groups that use them, and devices by
// their groups, until nothing more is told apart. Groups of one set that wait for each other at a
// link are told apart, too, since one is served before the other. What remains together is
// symmetric: an execution in which all members of a class do the same at the same times obeys every
// rule of the simulation.
//
// Example: dp=64, tp=8 and pp=8 are 4,096 devices. In each stage the first one fetches the loss;
// then its peers over tp and over dp differ from the rest: four classes in each stage, 32 in all.
//
// Source: partition refinement as in Hopcroft, "An n log n algorithm for minimizing states in a
// finite automaton" (1971), in plain rounds.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SIMULATOR_REPLICA_CLASSES_H_
#define PENSTOCK_PLANNER_SIMULATOR_REPLICA_CLASSES_H_

#include <cstdint>
#include <vector>

#include "planner/cluster/cluster_model.h"
#include "planner/cluster/group_shape.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan_peers.h"
#include "planner/search/machine.h"
#include "planner/simulator/machine_resources.h"

namespace penstock::planner {

// Where the groups of each set of a plan's peers lie in a cluster.
struct GroupPlaces {
  std::vector<std::vector<std::vector<uint32_t>>> links;  // by set and group
  std::vector<std::vector<uint32_t>> shapes;              // likewise: equal ones cost the same
  std::vector<GroupShape> shape_of;                       // of collectives
  std::vector<double> link_bytes_per_s;                   // of each link
  size_t num_links() const { return link_bytes_per_s.size(); }
};

GroupPlaces PlaceGroups(const PlanPeers& peers, const Cluster& cluster);

struct ReplicaClasses {
  uint32_t num_devices = 0;                     // classes of devices
  std::vector<uint32_t> of_device;              // numbered as they occur
  std::vector<std::vector<uint32_t>> of_group;  // by set and group; numbered in each set
  std::vector<uint32_t> num_groups;             // classes of each set
  std::vector<uint32_t> of_link;
};

// Every device, group and link in a class of its own.
ReplicaClasses SeparateClasses(const FoldedPlan& plan, const PlanPeers& peers,
                               const GroupPlaces& places);

// REQUIRES: the machine has a device for each of the plan's.
ReplicaClasses FindReplicas(const FoldedPlan& plan, const PlanPeers& peers,
                            const GroupPlaces& places, const Machine& machine);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_REPLICA_CLASSES_H_
