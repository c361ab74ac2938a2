// How long communication takes on a cluster: the alpha-beta model with a choice of algorithm and
// contention.
//
// The time of a collective is a formula of the group's shape (group_shape.h), the bytes and the
// other groups that communicate at once. Sums that a reduction forms are part of the rates.
//
// Let D be the bytes of a collective, n the members, A the latency of the level at which the group
// meets, and R the rate of the slowest uplink with the traffic that the algorithm puts on it. For a
// reduce_scatter or an all_gather (an all_reduce is one after the other):
//
//   direct          A + (n - 2) A kMessageOverhead + D (n - 1)/n / R. Every member exchanges a
//                   piece with every other at once. An uplink that m members share carries the
//                   m (n - m) pieces that cross it. (Thakur, Rabenseifner & Gropp, "Optimization of
//                   collective communication operations in MPICH", 2005; the overhead of messages
//                   as in Culler et al., "LogP", 1993)
//   ring            the latencies of n - 1 edges + D (n - 1)/n / R. Members are in the order of
//                   devices, so the ring enters each child once. (Patarasuk & Yuan, "Bandwidth
//                   optimal all-reduce algorithms for clusters of workstations", 2009)
//   parallel rings  the same, but the data are split over as many rings as a child has members,
//                   each of which leaves the child at another member: what NCCL does where a node
//                   has several network cards.
//   hierarchical    two stages, each direct or a ring: D bytes between p consecutive members, then
//                   D/p between the n/p members of equal position. All p members of a child use
//                   its uplinks. (Jia et al., "Highly scalable deep learning training system with
//                   mixed-precision", 2018)
//   torus           D is split into as many parts as the group's box has dimensions. Each part
//                   passes through all dimensions, starting with a different one, as rings in both
//                   directions. (Sack & Gropp, "Collective algorithms for multiported torus
//                   networks", 2015)
//
// An all_to_all and a permute are direct. A broadcast is direct (the root sends to all), a chain
// in chunks (ring), or hierarchical. A direct exchange in a torus takes as long as its busiest
// link, under dimension-ordered routing. A group that is not a box is estimated by the box around
// it.
//
// Example: an all_reduce of 1 GB over the 16 devices in the example of cluster.h. A ring crosses
// with one flow: 2 * 15/16 GB / 25 GB/s = 75 ms. Hierarchical: inside, 2 * 7/8 GB / 300 GB/s =
// 5.8 ms, and across, 2 * (1/8 GB) * 1/2 / 25 GB/s = 5 ms.
//
// Guarantees: times do not decrease with bytes, groups at once or latency, nor increase with
// bandwidth. On switches, a group of n members inside one child takes no longer than any n members
// that have to leave it.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_COLLECTIVE_COST_H_
#define PENSTOCK_PLANNER_CLUSTER_COLLECTIVE_COST_H_

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"

#include "base/collective.h"
#include "planner/cluster/cluster_model.h"
#include "planner/cluster/group_shape.h"

namespace penstock::planner {

// What each further message of a direct exchange adds, as a part of the latency: the ratio that
// `penstock bench collectives` measures for 4 processes of one host.
inline constexpr double kMessageOverhead = 0.25;

// How members exchange data. The comment at the top has what each takes.
enum class CollectiveMethod : uint8_t { kDirect, kRing, kHierarchical, kParallelRings, kTorus };

std::string_view Name(CollectiveMethod method);  // "direct", "parallel rings", ...

// Which methods a transport has. The runtime has those of base/collective.h.
struct CollectiveMethods {
  bool direct = true;           // everybody with everybody at once
  bool ring = true;             // one ring through all members
  bool hierarchical = true;     // inside children, then across
  bool parallel_rings = false;  // a ring for each member of a child
  bool torus = true;            // applies only to boxes in a torus
};

// Of NCCL as far as it is modelled here.
inline constexpr CollectiveMethods kNcclMethods = {.parallel_rings = true};

// What a collective takes.
struct CollectiveTime {
  double seconds = 0;                                   // from the first send to the last arrival
  CollectiveMethod method = CollectiveMethod::kDirect;  // that takes so long
};

// The fastest of `methods` for the kind. `num_bytes`:
//   all_reduce, reduce_scatter  of the input of each member
//   all_gather                  of the output of each member
//   all_to_all                  of the input of each member, which has equal parts for all members
//   broadcast                   of the root's input
//   permute                     of the message from each member to one other, which is taken to be
//                               as far away as any is (PredictPermute knows where it is)
// Direct is used where no method of `methods` applies. REQUIRES: num_bytes >= 0; the shape is one
// of this cluster.
CollectiveTime PredictCollective(const Cluster& cluster, const GroupShape& shape,
                                 CollectiveKind kind, double num_bytes,
                                 const GroupsAtOnce& groups_at_once = {},
                                 CollectiveMethods methods = {});

// A permute of messages of `num_bytes` each that are sent at once: as many as CountCrossing says.
// What is between groups at once is counted there. A shift by one over the members of a group, as
// in a ring, thus sends one message out of each child, where any permute may send one for each
// member.
double PredictPermute(const Cluster& cluster, const GroupShape& shape,
                      absl::Span<const int64_t> crossing, double num_bytes);

// One message between two devices. No time from a device to itself.
double PredictSendSeconds(const Cluster& cluster, int64_t from, int64_t to, double num_bytes,
                          const GroupsAtOnce& groups_at_once = {});

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_COLLECTIVE_COST_H_
