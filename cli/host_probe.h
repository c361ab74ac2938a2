// Measures the hosts of a launch before the job is planned: how fast each computes, and the links
// between them. A node is started on each host for it, and ends before those of the job start.
// Members, which others have started, join for it, and join again for the job. Where a plan does
// not depend on it, the nodes of the job measure how fast they compute.
//
// Thread rule: one thread, which blocks.

#ifndef PENSTOCK_CLI_HOST_PROBE_H_
#define PENSTOCK_CLI_HOST_PROBE_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/environment.h"
#include "cli/job.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/node_place.h"
#include "planner/cluster/cluster_model.h"

namespace penstock::cli {

struct HostProbe {
  // Those of the launch, in an order in which hosts of one network are neighbours.
  std::vector<actors::NodePlace> places;
  // Empty: the links could not be measured, or the ranks of members are not in that order.
  std::vector<planner::NetworkLevel> networks;
  std::vector<double> speeds;  // of the hosts of `places`, in order: Job::Cluster::host_speeds
};

// How many nodes measure on the hosts of these places: one on each, or all members.
size_t NumProbedNodes(const std::vector<actors::NodePlace>& places, size_t num_hosts);

// Prints what was found: the networks, and hosts that compute slower than the others. An error if
// the nodes cannot be started, which those of the job could not be either. From then on,
// `environment` says where members join again, and with which key.
// An interrupt ends it with the error that Interrupts::ToStatus has.
// REQUIRES: `environment` has interrupts; as many places on each host, one host after the other,
// and at least two hosts.
absl::StatusOr<HostProbe> ProbeLaunch(Environment* environment, const Job& job);

// Names the hosts of a job whose cores compute slower than those of the others, unless ProbeLaunch
// has, or the user does not want it. On several hosts, that takes 0.4 s, and up to five times as
// long where one seems slow. Before any session of the cluster.
void NameSlowHosts(const Environment& environment, actors::Cluster& cluster);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_HOST_PROBE_H_
