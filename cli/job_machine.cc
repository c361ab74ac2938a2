#include "cli/job_machine.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/device_kinds.h"
#include "cli/device_list.h"
#include "cli/files.h"
#include "cli/host_layout.h"

#include "base/blocks.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/cluster_file.h"
#include "planner/cluster/presets.h"
#include "planner/cluster/probed_hosts.h"
#include "planner/cost/communication_cost.h"
#include "planner/search/this_machine.h"

namespace penstock::cli {
namespace {

// Devices of each block between which messages pass over links slower than memory: hosts, or where
// the job gives the rate of its links, processes.
absl::StatusOr<HostDevices> BlocksOf(const Job& job, int64_t num_devices) {
  ASSIGN_OR_RETURN(HostDevices hosts, HostDevicesOf(job, num_devices));
  const bool has_links =
      job.cluster.link_gbit_per_s.has_value() || job.cluster.link_latency_us.has_value();
  const int64_t processes = std::min(job.cluster.processes, num_devices);
  if (hosts.size() > 1 || !has_links || processes == 1) return hosts;
  HostDevices blocks;
  for (int64_t i = 0; i < processes; ++i) {
    blocks.push_back(static_cast<uint32_t>(BlockBegin(i + 1, processes, num_devices) -
                                           BlockBegin(i, processes, num_devices)));
  }
  return blocks;
}

// Consecutive devices of a host that are not GPUs share its cores. GPUs need none, as if each had
// one and another was to spare.
std::vector<planner::CoreGroup> CoreGroupsOf(const HostDevices& hosts, const DeviceList& devices,
                                             int64_t at_once) {
  std::vector<planner::CoreGroup> groups;
  int64_t device = 0;
  for (const uint32_t count : hosts) {
    bool was_gpu = false;
    for (uint32_t i = 0; i < count; ++i, ++device) {
      const bool is_gpu = devices.KindOf(device) == "cuda";
      if (i == 0 || is_gpu != was_gpu) groups.push_back({0, at_once});
      ++groups.back().num_devices;
      if (is_gpu) groups.back().num_at_once = groups.back().num_devices + 1;
      was_gpu = is_gpu;
    }
  }
  return groups;
}

// This machine, or several like it.
absl::StatusOr<planner::Machine> MachineAtHand(const Job& job, int64_t num_devices) {
  ASSIGN_OR_RETURN(const HostDevices hosts, HostDevicesOf(job, num_devices));
  ASSIGN_OR_RETURN(const HostDevices blocks, BlocksOf(job, num_devices));
  const int64_t threads = std::min<int64_t>(ThreadsOf(job, num_devices), UsableCores());
  ASSIGN_OR_RETURN(const DeviceList devices, DeviceListOf(job, num_devices));
  const std::vector<planner::CoreGroup> core_groups =
      CoreGroupsOf(hosts, devices, std::max<int64_t>(UsableCores() / threads, 1));
  int64_t most = 1;  // devices that share a host's memory
  int64_t first = 0;
  for (const uint32_t count : hosts) {
    most = std::max(most, count - devices.Count("cuda", first, count));
    first += count;
  }
  planner::ClusterSpec spec;
  spec.name = "this machine";
  const uint64_t memory =
      std::min(MachineMemoryBytes(), static_cast<uint64_t>(planner::kMaxMemoryBytes));
  const std::vector<std::string> kinds = devices.KindsOf(0, num_devices);
  for (const std::string& kind : kinds) {
    ASSIGN_OR_RETURN(planner::DeviceKind planned,
                     PlannedDevice(kind, threads, static_cast<int64_t>(memory) / most));
    spec.kinds.push_back(std::move(planned));
  }
  for (const DeviceList::Block& block : devices.Blocks(num_devices)) {
    const auto kind = std::find(kinds.begin(), kinds.end(), block.kind) - kinds.begin();
    if (kinds.size() > 1) spec.devices.push_back({block.count, kind});
  }
  const planner::LinkRates on_host;
  planner::NetworkLevel host;
  host.name = "host";
  host.fan_out.assign(blocks.begin(), blocks.end());
  host.bytes_per_s = on_host.bytes_per_s;
  host.latency_s = on_host.latency_s;
  spec.levels.push_back(host);
  if (blocks.size() > 1 && !job.cluster.networks.empty()) {
    spec.levels.insert(spec.levels.end(), job.cluster.networks.begin(), job.cluster.networks.end());
  } else if (blocks.size() > 1) {
    planner::NetworkLevel network;
    network.name = "network";
    network.fan_out = {static_cast<int64_t>(blocks.size())};
    network.bytes_per_s =
        std::min(job.cluster.link_gbit_per_s.value_or(on_host.bytes_per_s * 8e-9) * 1e9 / 8,
                 planner::kMaxBytesPerS);
    network.latency_s = std::max(job.cluster.link_latency_us.value_or(0) * 1e-6, on_host.latency_s);
    network.latency_s = std::min(network.latency_s, planner::kMaxLatencyS);
    spec.levels.push_back(network);
  }
  if (job.cluster.host_speeds.size() == hosts.size()) {
    planner::SlowDown(hosts, job.cluster.host_speeds, &spec);
  }
  ASSIGN_OR_RETURN(planner::Cluster cluster, planner::Cluster::Create(std::move(spec)));
  planner::Machine machine{std::move(cluster)};
  if (devices.IsAll("cuda")) return machine;  // GPUs share no cores
  machine.core_groups = core_groups;
  RETURN_IF_ERROR(planner::ChargeCommunication(&machine));
  return machine;
}

absl::StatusOr<planner::Machine> MachineOf(planner::Cluster cluster) {
  planner::Machine machine{std::move(cluster)};
  const int64_t at_once = machine.cluster.spec().devices_at_once;
  if (at_once == 0 || machine.cluster.num_levels() == 0) return machine;
  for (int64_t group = 0; group < machine.cluster.NumGroups(0); ++group) {
    const int64_t size =
        machine.cluster.GroupBegin(0, group + 1) - machine.cluster.GroupBegin(0, group);
    machine.core_groups.push_back({size, at_once});
  }
  RETURN_IF_ERROR(planner::ChargeCommunication(&machine));
  return machine;
}

}  // namespace

absl::StatusOr<std::optional<planner::Cluster>> ClusterOf(const Job& job) {
  const std::string& file = job.cluster.file;
  if (file.empty()) return std::optional<planner::Cluster>();
  const bool is_path = std::filesystem::exists(file) || file.find('/') != std::string::npos ||
                       HasSuffix(file, ".toml");
  if (!is_path) {
    absl::StatusOr<planner::Cluster> preset = planner::FindClusterPreset(file);
    if (!preset.ok()) return AtKey(job, {"cluster.file"}, preset.status());
    return std::optional<planner::Cluster>(*std::move(preset));
  }
  const absl::StatusOr<std::string> text = ReadTextFile(file, planner::kMaxClusterFileBytes);
  if (!text.ok()) return AtKey(job, {"cluster.file"}, text.status());
  ASSIGN_OR_RETURN(planner::Cluster cluster, planner::ParseCluster(*text, file));
  return std::optional<planner::Cluster>(std::move(cluster));
}

absl::StatusOr<int64_t> DevicesForAuto(const Job& job) {
  if (job.cluster.devices.has_value()) return *job.cluster.devices;
  ASSIGN_OR_RETURN(const std::optional<planner::Cluster> cluster, ClusterOf(job));
  return cluster.has_value() ? cluster->num_devices() : 1;
}

int64_t ThreadsOf(const Job& job, int64_t num_devices) {
  const HostDevices hosts = HostDevicesOf(job, num_devices).value_or(HostDevices());
  const DeviceList devices = DeviceListOf(job, num_devices).value_or(DeviceList());
  int64_t threads = UsableCores();
  int64_t first = 0;
  for (const int64_t count : hosts) {
    // A device of another kind has one thread; where there are only such, threads mean nothing.
    const int64_t num_cpus = devices.Count("cpu", first, count);
    threads = std::min(threads, num_cpus > 0 ? (UsableCores() - (count - num_cpus)) / num_cpus
                                             : UsableCores() / count);
    first += count;
  }
  return job.cluster.threads.value_or(std::max<int64_t>(threads, 1));
}

absl::StatusOr<planner::Machine> MachineOf(const Job& job, int64_t num_devices) {
  RETURN_IF_ERROR(DeviceListOf(job, num_devices).status());
  ASSIGN_OR_RETURN(std::optional<planner::Cluster> cluster, ClusterOf(job));
  if (!cluster.has_value()) return MachineAtHand(job, num_devices);
  if (num_devices <= cluster->num_devices()) return MachineOf(*std::move(cluster));
  return AtKey(job, {"cluster.file"},
               absl::InvalidArgumentError(StrCat("the cluster has ",
                                                 Counted(cluster->num_devices(), "device"),
                                                 ", and the job needs ", num_devices)));
}

}  // namespace penstock::cli
