#include "cli/device_kinds.h"

#include <cstdint>
#include <utility>

#include "base/counted.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/gpu.h"
#include "planner/cluster/presets.h"
#include "transport/nccl.h"

namespace penstock::cli {
namespace {

std::string DescribeGpu(const kernels::Gpu& gpu, size_t index) {
  std::string line =
      StrCat("GPU ", index, ": ", gpu.name, ", compute capability ", gpu.capability / 10, ".",
             gpu.capability % 10, ", ", FormatBytes(gpu.memory_bytes), ", ",
             Counted(gpu.num_processors, "multiprocessor"));
  if (!gpu.peers.empty()) StrAppend(&line, ", direct access to ", StrJoin(gpu.peers, ", "));
  return line;
}

// "13.0"
std::string Version(int version) { return StrCat(version / 1000, ".", version % 1000 / 10); }

}  // namespace

absl::StatusOr<const kernels::KernelRegistry*> KernelsOf(const Registries& registries,
                                                         std::string_view kind) {
  if (kind != "cuda") return &registries.kernels;
  if (!registries.cuda_kernels.Names().empty()) return &registries.cuda_kernels;
  return absl::FailedPreconditionError(
      "this build has no kernels for devices of kind \"cuda\": configure it with PENSTOCK_CUDA=ON");
}

absl::StatusOr<DeviceSource> FindDevices(std::string_view kind, size_t num_devices,
                                         bool is_one_process) {
  if (kind != "cuda") return DeviceSource();
  const kernels::GpuSystem system = kernels::FindGpus();
  RETURN_IF_ERROR(system.status);
  const auto count = static_cast<uint32_t>(system.gpus.size());
  DeviceSource source;
  source.create = [count](uint32_t index) {
    return kernels::CreateCudaDevice(static_cast<int>(index % count));
  };
  source.max_memory_bytes = MachineMemoryBytes();
  for (const kernels::Gpu& gpu : system.gpus) source.max_memory_bytes += gpu.memory_bytes;
  // NCCL takes no GPU twice, and the devices of one process only.
  if (is_one_process && num_devices > 1 && num_devices <= count) {
    absl::StatusOr<transport::CommunicatorFactory> factory = transport::CreateNcclCommunicators();
    if (factory.ok()) source.create_communicator = *std::move(factory);
  }
  return source;
}

std::vector<std::string> DescribeDevices(std::string_view kind) {
  if (kind != "cuda") return {Counted(UsableCores(), "core")};
  const kernels::GpuSystem system = kernels::FindGpus();
  if (!system.status.ok()) return {StrCat("none: ", ToStd(system.status.message()))};
  std::vector<std::string> lines;
  for (size_t i = 0; i < system.gpus.size(); ++i) lines.push_back(DescribeGpu(system.gpus[i], i));
  lines.push_back(StrCat("CUDA ", Version(system.runtime_version), ", driver for CUDA ",
                         Version(system.driver_version)));
  lines.push_back(DescribeNccl());
  return lines;
}

std::string DescribeNccl() {
  const transport::NcclSystem nccl = transport::FindNccl();
  if (!nccl.status.ok()) return StrCat("no NCCL: ", ToStd(nccl.status.message()));
  return StrCat("NCCL ", nccl.version / 10000, ".", nccl.version / 100 % 100, ".",
                nccl.version % 100);
}

absl::StatusOr<planner::DeviceKind> PlannedGpu() {
  ASSIGN_OR_RETURN(const planner::Cluster cluster, planner::FindClusterPreset("hgx-h100:1"));
  planner::DeviceKind kind = cluster.spec().kinds[0];
  const kernels::GpuSystem system = kernels::FindGpus();
  if (system.status.ok()) {
    const kernels::Gpu& gpu = system.gpus[0];
    kind.name = gpu.name;
    kind.memory_bytes = static_cast<int64_t>(gpu.memory_bytes);
    if (gpu.memory_bytes_per_s > 0) kind.memory_bytes_per_s = gpu.memory_bytes_per_s;
  }
  return kind;
}

}  // namespace penstock::cli
