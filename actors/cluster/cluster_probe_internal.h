// Has the nodes of a cluster measure how fast they compute and the links between them
// (link_probe.h).
//
// Thread rule: any thread but the loop's; blocks.
// Invariants: those of NodeCalls; every node is told to finish before the return.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_PROBE_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_PROBE_INTERNAL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/cluster_figures.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_supervisor_internal.h"

namespace penstock::actors {

absl::StatusOr<ClusterFigures> ProbeNodes(control::ControlLoop& loop, NodeSupervisor& supervisor,
                                          absl::Duration timeout);

// How fast each node computes on its cores, by rank; all measure at the same time.
absl::StatusOr<std::vector<double>> MeasureNodes(control::ControlLoop& loop,
                                                 NodeSupervisor& supervisor,
                                                 absl::Duration timeout);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_PROBE_INTERNAL_H_
