// The kinds of devices that a job may run on (cluster.device_kind): "cpu" and "cuda".
//
// Thread rule: pure functions, but for what they ask of the machine.

#ifndef PENSTOCK_CLI_DEVICE_KINDS_H_
#define PENSTOCK_CLI_DEVICE_KINDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/environment.h"

#include "actors/session/local_engine.h"
#include "kernels/kernel.h"
#include "planner/cluster/cluster_model.h"

namespace penstock::cli {

inline constexpr std::string_view kDeviceKinds[] = {"cpu", "cuda"};

// What computes operators on devices of the kind; an error where this build has nothing for it.
absl::StatusOr<const kernels::KernelRegistry*> KernelsOf(const Registries& registries,
                                                         std::string_view kind);

// What a session or a node is told of its devices; nothing for CPUs, which the engine makes itself.
struct DeviceSource {
  actors::DeviceFactory create;   // device `index` of a plan, on GPUs by turns
  uint64_t max_memory_bytes = 0;  // of all devices and of the host
};
// An error where this machine has no such device.
absl::StatusOr<DeviceSource> FindDevices(std::string_view kind);

// Lines about the devices of the kind in this machine, or why there is none.
std::vector<std::string> DescribeDevices(std::string_view kind);

// A GPU of this machine as a planner sees it; where there is none, an H100.
absl::StatusOr<planner::DeviceKind> PlannedGpu();

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_DEVICE_KINDS_H_
