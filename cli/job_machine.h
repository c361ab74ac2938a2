// Where a job runs, for predictions and for the choice of a strategy: the cluster that it names, or
// this machine.
//
// Thread rule: pure functions but for the file that a job names and what this machine is.

#ifndef PENSTOCK_CLI_JOB_MACHINE_H_
#define PENSTOCK_CLI_JOB_MACHINE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "cli/job.h"

#include "planner/cluster/cluster_model.h"
#include "planner/search/machine.h"

namespace penstock::cli {

// The cluster of cluster.file; nothing without one. Errors begin with file:line:column.
absl::StatusOr<std::optional<planner::Cluster>> ClusterOf(const Job& job);

// Devices that "auto" uses: cluster.devices, those of the cluster, or 1.
absl::StatusOr<int64_t> DevicesForAuto(const Job& job);

// Threads of each device: the job's, or as many as the cores of a host give each of its devices.
int64_t ThreadsOf(const Job& job, int64_t num_devices);

// The machine of `num_devices` devices. Without cluster.file, each host has the cores, and the
// memory, of this one, which its devices share. An error if the cluster has fewer devices, or the
// job's hosts do not have that many.
absl::StatusOr<planner::Machine> MachineOf(const Job& job, int64_t num_devices);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_MACHINE_H_
