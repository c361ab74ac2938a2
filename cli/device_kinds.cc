#include "cli/device_kinds.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <utility>

#include "base/counted.h"
#include "base/emulated_device.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/emulated/emulated_kernels.h"
#include "kernels/gpu.h"
#include "planner/cluster/presets.h"
#include "planner/search/this_machine.h"
#include "transport/nccl.h"

namespace penstock::cli {
namespace {

// "13.0"
std::string Version(int version) { return StrCat(version / 1000, ".", version % 1000 / 10); }

// Where the driver tells its version; empty where it is not loaded.
std::string ReadDriverFile() {
  std::ifstream file("/proc/driver/nvidia/version");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// What all processes need; `gpus` are those of this machine, if the job has GPUs.
absl::StatusOr<DeviceSource> FindDevicesOf(const DeviceList& devices,
                                           std::vector<kernels::Gpu>* gpus) {
  DeviceSource source;
  if (devices.IsAll("cpu")) return source;
  source.max_memory_bytes = MachineMemoryBytes();
  if (devices.Has("cuda")) {
    const kernels::GpuSystem system = kernels::FindGpus();
    RETURN_IF_ERROR(system.status);
    *gpus = system.gpus;
    for (const kernels::Gpu& gpu : system.gpus) source.max_memory_bytes += gpu.memory_bytes;
  }
  source.create = [devices, num_gpus = static_cast<uint32_t>(gpus->size())](
                      uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
    const std::string& kind = devices.KindOf(index);
    if (kind == "cuda") {
      return kernels::CreateCudaDevice(static_cast<int>(devices.IndexInKind(index) % num_gpus));
    }
    if (kind == "emulated") return EmulatedDevice::Create({.seed = index});
    return nullptr;
  };
  return source;
}

}  // namespace

absl::StatusOr<kernels::KernelsByKind> KernelsOf(const Registries& registries,
                                                 const DeviceList& devices) {
  kernels::KernelsByKind kernels;
  if (devices.Has("cuda")) {
    if (registries.cuda_kernels.Names().empty()) {
      return absl::FailedPreconditionError(
          "this build has no kernels for devices of kind \"cuda\": configure it with "
          "PENSTOCK_CUDA=ON");
    }
    // The registry outlives it.
    kernels["cuda"] = std::shared_ptr<const kernels::KernelRegistry>(std::shared_ptr<void>(),
                                                                     &registries.cuda_kernels);
  }
  if (devices.Has("emulated")) {
    kernels["emulated"] = std::make_shared<const kernels::KernelRegistry>(
        kernels::EmulatedKernels(registries.kernels));
  }
  return kernels;
}

absl::StatusOr<planner::KernelTraitsOf> TraitsOf(const Registries& registries,
                                                 const DeviceList& devices, int num_threads) {
  RETURN_IF_ERROR(KernelsOf(registries, devices).status());
  std::map<std::string, graph::KernelTraits> traits;
  for (const std::string& kind : devices.Kinds()) {
    // Emulated devices run the kernels of the CPU.
    graph::KernelTraits& of_kind = traits[kind];
    of_kind = kernels::TraitsOf(kind == "cuda" ? registries.cuda_kernels : registries.kernels,
                                num_threads);
    if (devices.is_uniform()) continue;
    of_kind.check_kernel = [kind, check = std::move(of_kind.check_kernel)](
                               const graph::KernelSpec& spec) -> absl::Status {
      const absl::Status status = check(spec);
      if (status.ok()) return status;
      return absl::Status(status.code(),
                          StrCat("on devices of kind ", kind, ": ", ToStd(status.message())));
    };
  }
  return planner::KernelTraitsOf(
      [traits = std::move(traits), devices](uint32_t first, uint32_t count) {
        std::vector<graph::KernelTraits> of_kinds;
        for (const std::string& kind : devices.KindsOf(first, count)) {
          of_kinds.push_back(traits.at(kind));
        }
        return kernels::CommonTraits(std::move(of_kinds));
      });
}

std::string CollectivesNote(const absl::StatusOr<std::string>& communicators,
                            std::string_view why_not_messages) {
  if (!communicators.ok()) {
    return StrCat("what the GPUs exchange goes through the memory of the host: ",
                  ToStd(communicators.status().message()));
  }
  if (why_not_messages.empty()) {
    return StrCat("what the GPUs exchange goes through ", *communicators);
  }
  return StrCat("collectives of the GPUs go through ", *communicators,
                ", messages through the memory of the host: ", why_not_messages);
}

absl::Status CheckGpuCollectives(const DeviceList& devices, size_t num_devices, size_t num_gpus) {
  if (!devices.IsAll("cuda")) {
    return absl::FailedPreconditionError(
        "NCCL joins GPUs alone, and the job has devices of other kinds");
  }
  if (num_devices > num_gpus) {
    return absl::FailedPreconditionError(
        StrCat("NCCL wants a GPU for each device, and ",
               Counted(static_cast<int64_t>(num_devices), "device"), " share ",
               Counted(static_cast<int64_t>(num_gpus), "GPU")));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceSource> FindDevices(const DeviceList& devices, size_t num_devices) {
  std::vector<kernels::Gpu> gpus;
  ASSIGN_OR_RETURN(DeviceSource source, FindDevicesOf(devices, &gpus));
  if (!devices.Has("cuda") || num_devices < 2) return source;
  absl::Status status = CheckGpuCollectives(devices, num_devices, gpus.size());
  if (status.ok()) {
    absl::StatusOr<transport::CommunicatorFactory> factory = transport::CreateNcclCommunicators();
    status = factory.status();
    if (factory.ok()) source.create_communicator = *std::move(factory);
  }
  source.communicators_name = status.ok() ? absl::StatusOr<std::string>(DescribeNccl()) : status;
  return source;
}

absl::StatusOr<DeviceSource> FindNodeDevices(const DeviceList& devices) {
  std::vector<kernels::Gpu> gpus;
  ASSIGN_OR_RETURN(DeviceSource source, FindDevicesOf(devices, &gpus));
  if (!devices.IsAll("cuda")) {
    source.no_communicators = ToStd(CheckGpuCollectives(devices, 0, 0).message());
    return source;
  }
  std::vector<std::string> ids;
  for (const kernels::Gpu& gpu : gpus) ids.push_back(gpu.id);
  auto communicators = transport::CreateNcclSource(
      [ids = std::move(ids)](uint32_t index) { return ids[index % ids.size()]; });
  if (communicators.ok()) {
    source.communicators = *std::move(communicators);
  } else {
    source.no_communicators = ToStd(communicators.status().message());
  }
  return source;
}

std::string DescribeGpu(const kernels::Gpu& gpu, size_t index, size_t num_gpus) {
  std::string line =
      StrCat("GPU ", index, ": ", gpu.name, ", compute capability ", gpu.capability / 10, ".",
             gpu.capability % 10, ", ", FormatBytes(gpu.memory_bytes), ", ",
             Counted(gpu.num_processors, "multiprocessor"));
  if (!gpu.peers.empty()) {
    StrAppend(&line, ", direct access to ", StrJoin(gpu.peers, ", "));
  } else if (num_gpus > 1) {
    StrAppend(&line, ", no direct access to other GPUs");
  }
  return line;
}

std::string DescribeCuda(const kernels::GpuSystem& system, std::string_view driver_file) {
  // The first word that is a version: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03".
  static const std::regex kVersion(R"(\s([0-9]+(\.[0-9]+)+)\s)");
  std::match_results<std::string_view::const_iterator> match;
  const bool has_version =
      std::regex_search(driver_file.begin(), driver_file.end(), match, kVersion);
  return StrCat("CUDA ", Version(system.runtime_version), "; the newest that the driver",
                has_version ? StrCat(" ", match[1].str()) : "", " supports is CUDA ",
                Version(system.driver_version));
}

std::vector<std::string> DescribeDevices(std::string_view kind) {
  if (kind == "cpu") return {Counted(UsableCores(), "core")};
  if (kind == "emulated") return {"devices on the host that behave like GPUs, for tests"};
  const kernels::GpuSystem system = kernels::FindGpus();
  if (!system.status.ok()) return {StrCat("none: ", ToStd(system.status.message()))};
  std::vector<std::string> lines;
  for (size_t i = 0; i < system.gpus.size(); ++i) {
    lines.push_back(DescribeGpu(system.gpus[i], i, system.gpus.size()));
  }
  lines.push_back(DescribeCuda(system, ReadDriverFile()));
  lines.push_back(DescribeNccl());
  lines.push_back(kernels::DescribeCudnn());
  return lines;
}

std::string DescribeNccl() {
  const transport::NcclSystem nccl = transport::FindNccl();
  if (!nccl.status.ok()) return StrCat("no NCCL: ", ToStd(nccl.status.message()));
  return transport::NcclName(nccl.version);
}

absl::StatusOr<planner::DeviceKind> PlannedDevice(std::string_view kind, int64_t num_threads,
                                                  int64_t memory_bytes) {
  if (kind != "cuda") {
    const bool is_cpu = kind == "cpu";
    planner::DeviceKind device = planner::CpuDevice(is_cpu ? num_threads : 1, memory_bytes);
    device.name = std::string(kind);
    // What is kept on its host is copied there.
    if (!is_cpu) device.host_link_bytes_per_s = device.memory_bytes_per_s;
    return device;
  }
  ASSIGN_OR_RETURN(const planner::Cluster cluster, planner::FindClusterPreset("hgx-h100:1"));
  planner::DeviceKind gpu = cluster.spec().kinds[0];
  const kernels::GpuSystem system = kernels::FindGpus();
  if (system.status.ok()) {
    const kernels::Gpu& first = system.gpus[0];
    // How fast it computes, CUDA does not say.
    const bool is_hopper = first.name.find("H100") != std::string::npos ||
                           first.name.find("H200") != std::string::npos;
    gpu.name = is_hopper ? first.name : StrCat(first.name, ", taken for an H100");
    gpu.memory_bytes = static_cast<int64_t>(first.memory_bytes);
    if (first.memory_bytes_per_s > 0) gpu.memory_bytes_per_s = first.memory_bytes_per_s;
  }
  return gpu;
}

}  // namespace penstock::cli
