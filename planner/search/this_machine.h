// The machine that a process runs on, where none is described and nothing was measured.
//
// Thread rule: pure functions but for what this host is.

#ifndef PENSTOCK_PLANNER_SEARCH_THIS_MACHINE_H_
#define PENSTOCK_PLANNER_SEARCH_THIS_MACHINE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/cluster/cluster_model.h"
#include "planner/search/machine.h"

namespace penstock::planner {

// A CPU device of so many threads.
DeviceKind CpuDevice(int64_t num_threads, int64_t memory_bytes);

// Says what communication takes of the cores (Machine::core_shares). Where devices share cores,
// messages between them take at least as long as it takes to wake a thread.
absl::Status ChargeCommunication(Machine* machine);

// The host of this process, whose cores and memory the devices share. REQUIRES: both are positive.
absl::StatusOr<Machine> MachineOfThisHost(int64_t num_devices, int64_t num_threads);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_THIS_MACHINE_H_
