// Where a job runs, for predictions: a cluster, and which of its devices share cores.
//
// Device d of a plan is device d of the cluster. Devices with a processor of their own, such as
// GPUs, share no cores. The devices of a host without enough cores for all of them do: while one
// waits, the others are faster, so what counts is the work of all of them together.
//
// Example: 4 devices of a thread each on a host with 2 cores are {num_devices = 4, num_at_once =
// 2}.
//
// Thread rule: a value.

#ifndef PENSTOCK_PLANNER_SEARCH_MACHINE_H_
#define PENSTOCK_PLANNER_SEARCH_MACHINE_H_

#include <cstdint>
#include <vector>

#include "planner/cluster/cluster_model.h"
#include "planner/cluster/collective_cost.h"

namespace penstock::planner {

// Consecutive devices that share cores.
struct CoreGroup {
  int64_t num_devices = 0;  // of the group
  int64_t num_at_once = 0;  // that the cores could serve, which may be more

  // Whether a core is left to communicate while all devices compute.
  bool has_spare_core() const { return num_at_once > num_devices; }

  friend bool operator==(const CoreGroup&, const CoreGroup&) = default;
};

// A cluster, and which of its devices share cores. See the top of this file.
struct Machine {
  Cluster cluster;                 // its devices and the links between them
  CollectiveMethods methods = {};  // how the devices run collectives
  // From device 0 on; devices beyond the last group share no cores.
  std::vector<CoreGroup> core_groups = {};
  // By level of the cluster: the part of a transfer's time that a core at each of its ends spends
  // on it, as copies through shared memory do (1) and the protocols of a network. Levels beyond the
  // end, and a level of -1: nothing.
  std::vector<double> core_shares = {};

  // Of core_shares, that of a level.
  double CoreShare(int level) const {
    return level < 0 || static_cast<size_t>(level) >= core_shares.size() ? 0 : core_shares[level];
  }
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_MACHINE_H_
