// What a job finds on this machine for the kinds of its devices (device_list.h): kernels, devices,
// and what a planner knows of them.
//
// Thread rule: pure functions, but for what they ask of the machine.

#ifndef PENSTOCK_CLI_DEVICE_KINDS_H_
#define PENSTOCK_CLI_DEVICE_KINDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/device_list.h"
#include "cli/environment.h"

#include "actors/session/local_engine.h"
#include "kernels/device_kernels.h"
#include "kernels/gpu.h"
#include "planner/cluster/cluster_model.h"
#include "planner/compile.h"
#include "transport/stream_collective.h"

namespace penstock::cli {

// The kernels of devices other than CPUs, which use Registries::kernels. An error if this build has
// none for a kind. `registries` outlives the result.
absl::StatusOr<kernels::KernelsByKind> KernelsOf(const Registries& registries,
                                                 const DeviceList& devices);

// What the planner must know of the kernels; a CPU device has `num_threads`. The same errors.
absl::StatusOr<planner::KernelTraitsOf> TraitsOf(const Registries& registries,
                                                 const DeviceList& devices, int num_threads);

// What a session or a node is told of its devices; nothing for CPUs, which the engine makes itself.
struct DeviceSource {
  actors::DeviceFactory create;   // device `index` of a plan, on GPUs by turns
  uint64_t max_memory_bytes = 0;  // of all devices and of the host
  // By which the devices run collectives and messages themselves; null: the host runs them.
  transport::CommunicatorFactory create_communicator;
  // The same of a node, whose devices communicate with those of other processes, and why there is
  // none.
  std::shared_ptr<transport::CommunicatorSource> communicators;
  std::string no_communicators;
  // Of GPUs that exchange data: what create_communicator is of, and why there is none.
  std::optional<absl::StatusOr<std::string>> communicators_name;
};
// What a job tells its user: through what its GPUs run collectives and messages themselves, or why
// the host runs both, or messages alone.
std::string CollectivesNote(const absl::StatusOr<std::string>& communicators,
                            std::string_view why_not_messages);
// Why the host runs the collectives of a job with GPUs among its devices in one process, whether or
// not there is NCCL; OK: NCCL can run them.
absl::Status CheckGpuCollectives(const DeviceList& devices, size_t num_devices, size_t num_gpus);
// Of a process that has all `num_devices` of a job. An error where this machine has no such device.
// GPUs run collectives and messages where each device is a GPU of its own and there is NCCL.
absl::StatusOr<DeviceSource> FindDevices(const DeviceList& devices, size_t num_devices);
// Of a process that has some devices of a job: a node. It is told which as a session starts.
absl::StatusOr<DeviceSource> FindNodeDevices(const DeviceList& devices);

// Lines about the devices of the kind in this machine, or why there is none.
std::vector<std::string> DescribeDevices(std::string_view kind);

// The line of a GPU of this machine, which has `num_gpus`.
std::string DescribeGpu(const kernels::Gpu& gpu, size_t index, size_t num_gpus);
// "CUDA 13.0; the newest that the driver 580.159.03 supports is CUDA 13.0". CUDA does not tell the
// driver's own version: `driver_file` is /proc/driver/nvidia/version, or empty.
std::string DescribeCuda(const kernels::GpuSystem& system, std::string_view driver_file);

// "NCCL 2.28.9", or why there is none.
std::string DescribeNccl();

// A device of the kind as the planner sees it: a CPU with `num_threads`; the first GPU of this
// machine, or an H100 if it has none. All but GPUs have `memory_bytes` of the host's memory.
absl::StatusOr<planner::DeviceKind> PlannedDevice(std::string_view kind, int64_t num_threads,
                                                  int64_t memory_bytes);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_DEVICE_KINDS_H_
