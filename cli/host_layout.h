// How the devices of a job lie on hosts: in contiguous blocks, in the order of the hosts. A job
// says so with a number of hosts (cluster.hosts), over which devices are spread evenly, or names
// each host with its devices (cluster.host). Of a job that says neither, hosts have the devices of
// the processes that it is launched with there. The device that has the optimiser (optimizer=host)
// is spread with none: the first host, or process, has it beside its share.
//
// Thread rule: pure functions on values.

#ifndef PENSTOCK_CLI_HOST_LAYOUT_H_
#define PENSTOCK_CLI_HOST_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/job.h"

namespace penstock::cli {

// The number of devices of each host, in order; their sum is `num_devices`.
using HostDevices = std::vector<uint32_t>;

// An error unless each host has a device, and the hosts that are named have `num_devices` together.
absl::StatusOr<HostDevices> HostDevicesOf(const Job& job, int64_t num_devices);

// The number of devices of each process, so that no process spans hosts that are named: the
// processes of a host share its devices evenly. Without named hosts, and a device that has the
// optimiser: empty, as any blocks will do.
absl::StatusOr<std::vector<uint32_t>> ProcessDevicesOf(const Job& job, int64_t num_processes,
                                                       int64_t num_devices);

// The error of a job that is launched on more slots than it has devices.
absl::Status TooManySlots(int64_t num_slots, int64_t num_devices);

// A line "note: ..." where the job describes more hosts than there are processes; else empty.
std::string ProcessNote(const Job& job, int64_t num_processes);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_HOST_LAYOUT_H_
