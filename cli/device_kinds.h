// The kinds of devices that a job may run on (cluster.device_kind): "cpu" and "cuda".
//
// Thread rule: pure functions, but for what they ask of the machine.

#ifndef PENSTOCK_CLI_DEVICE_KINDS_H_
#define PENSTOCK_CLI_DEVICE_KINDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/environment.h"

#include "actors/session/local_engine.h"
#include "kernels/kernel.h"
#include "planner/cluster/cluster_model.h"
#include "transport/stream_collective.h"

namespace penstock::cli {

inline constexpr std::string_view kDeviceKinds[] = {"cpu", "cuda"};

// What computes operators on devices of the kind; an error where this build has nothing for it.
absl::StatusOr<const kernels::KernelRegistry*> KernelsOf(const Registries& registries,
                                                         std::string_view kind);

// What a session or a node is told of its devices; nothing for CPUs, which the engine makes itself.
struct DeviceSource {
  actors::DeviceFactory create;   // device `index` of a plan, on GPUs by turns
  uint64_t max_memory_bytes = 0;  // of all devices and of the host
  // By which the devices run their collectives themselves; null: the host runs them.
  transport::CommunicatorFactory create_communicator;
};
// For a job with `num_devices`. An error where this machine has no such device. GPUs run their
// collectives where one process has all devices, each is a GPU of its own, and there is NCCL.
absl::StatusOr<DeviceSource> FindDevices(std::string_view kind, size_t num_devices,
                                         bool is_one_process);

// Lines about the devices of the kind in this machine, or why there is none.
std::vector<std::string> DescribeDevices(std::string_view kind);

// "NCCL 2.28.9", or why there is none.
std::string DescribeNccl();

// A GPU of this machine as a planner sees it; where there is none, an H100.
absl::StatusOr<planner::DeviceKind> PlannedGpu();

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_DEVICE_KINDS_H_
