// Clusters as TOML files:
//
//   name = "two nodes"
//   devices_at_once = 4   # of a group of the first level; may be left out: all
//
//   [[kind]]
//   name = "A100"
//   memory_bytes = 85_899_345_920
//   memory_bytes_per_s = 2.039e12
//   peak_flops_per_s = {f32 = 19.5e12, bf16 = 312e12}  # by dtype
//   efficiency = [[1e6, 0.1], [1e12, 0.7]]             # flops of an operation, part of the peak
//   launch_s = 5e-6               # of the host, for a kernel, which runs ahead; left out: nothing
//   step_s = 1e-3                 # of the host, between two steps; not in simulations
//   host_link_bytes_per_s = 32e9  # in each direction; left out: it works in its host's memory
//   host_memory_bytes = 274_877_906_944  # of it, for a device; left out: not limited
//
//   [[kernel]]            # what an operator takes on a kind of device; may be left out
//   device = "A100"
//   op = "gelu"
//   dtype = "f32"
//   bound = "memory"      # what the peak rates hold up most; or "compute"
//   slowdown = [[10, 3], [1000, 4]]  # us that the peak rates allow, how many times as long it
//   takes
//
//   [[devices]]           # only if there is more than one kind: runs, in the order of devices
//   kind = "A100"
//   count = 16
//
//   [[level]]             # from the inside out
//   name = "node"
//   fan_out = 8           # or one number for each group, such as [8, 4]
//   bytes_per_s = 300e9   # of an uplink, in each direction
//   latency_s = 2e-6
//
//   [[level]]
//   name = "pod"
//   fan_out = 2
//   bytes_per_s = 25e9
//   latency_s = 4e-6
//   uplinks = "device"    # one for each device; or a number that the devices share (1)
//
//   # What collectives take, to choose algorithms and chunks by; may be left out.
//   [[collective]]
//   kind = "all_reduce"   # or "reduce_scatter", "all_gather", "all_to_all"
//   spread = "one host"   # or "a rank each" of several hosts, "several each"
//   ranks = 2
//   # Or "hierarchical"; with the bytes of a chunk.
//   algorithms = [["direct", 262144], ["ring", 1048576]]
//   # Bytes that a rank brings, then microseconds by each variant.
//   us = [[65536, 19, 21], [4194304, 417, 314]]
//
// The level of a torus has `torus = [4, 4, 4]` and may leave out fan_out. cluster.h defines what
// the values mean, and their limits.
//
// Reading is strict: an unknown or missing key, a value of the wrong type and one out of range are
// errors that begin with file:line:column and say what was expected.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_CLUSTER_FILE_H_
#define PENSTOCK_PLANNER_CLUSTER_CLUSTER_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::planner {

inline constexpr size_t kMaxClusterFileBytes = size_t{1} << 20;

// `file` names the text in errors.
absl::StatusOr<Cluster> ParseCluster(std::string_view text, std::string_view file);

// A text that ParseCluster reads back as an equal description.
std::string FormatCluster(const Cluster& cluster);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_CLUSTER_FILE_H_
