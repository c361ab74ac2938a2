#include "cli/host_layout.h"

#include <numeric>
#include <string>

#include "base/blocks.h"
#include "base/counted.h"
#include "base/strings.h"
#include "planner/strategy/strategy.h"

namespace penstock::cli {
namespace {

// "node-a has 3, node-b 1".
std::string ListHosts(const std::vector<Job::Host>& hosts) {
  std::string text;
  for (const Job::Host& host : hosts) {
    StrAppend(&text, text.empty() ? "" : ", ", host.name, text.empty() ? " has " : " ",
              host.devices);
  }
  return text;
}

std::vector<uint32_t> EvenBlocks(int64_t count, int64_t size) {
  std::vector<uint32_t> blocks;
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back(
        static_cast<uint32_t>(BlockBegin(i + 1, count, size) - BlockBegin(i, count, size)));
  }
  return blocks;
}

// Whether device 0 is one that has the optimiser, beside those that compute the gradients.
bool HasOptimizerDevice(const Job& job) {
  const auto strategy = planner::ParseStrategy(job.parallel.strategy);
  return strategy.ok() && strategy->has_value() && (*strategy)->optimizer_on_host;
}

// The devices of `count` hosts or processes that share them evenly. The first one has the device
// with the optimiser beside its share.
std::vector<uint32_t> SharesOf(const Job& job, int64_t count, int64_t num_devices) {
  const uint32_t beside = HasOptimizerDevice(job) && count < num_devices ? 1 : 0;
  std::vector<uint32_t> shares = EvenBlocks(count, num_devices - beside);
  shares[0] += beside;
  return shares;
}

// Processes share the devices, those of a host one after the other.
absl::StatusOr<HostDevices> DevicesOfProcesses(const Job& job, int64_t num_devices) {
  const std::vector<int64_t>& host_processes = job.cluster.host_processes;
  const int64_t count = std::accumulate(host_processes.begin(), host_processes.end(), int64_t{0});
  if (count > num_devices) return TooManySlots(count, num_devices);
  const std::vector<uint32_t> shares = SharesOf(job, count, num_devices);
  HostDevices devices;
  auto first = shares.begin();
  for (const int64_t processes : host_processes) {
    devices.push_back(std::accumulate(first, first + processes, uint32_t{0}));
    first += processes;
  }
  return devices;
}

}  // namespace

absl::StatusOr<HostDevices> HostDevicesOf(const Job& job, int64_t num_devices) {
  const std::vector<Job::Host>& hosts = job.cluster.host;
  if (!job.cluster.host_processes.empty()) {
    return DevicesOfProcesses(job, num_devices);
  }
  if (hosts.empty()) {
    if (job.cluster.hosts <= num_devices) return SharesOf(job, job.cluster.hosts, num_devices);
    return AtKey(job, {"cluster.hosts"},
                 absl::InvalidArgumentError(StrCat("cluster.hosts = ", job.cluster.hosts, " for ",
                                                   Counted(num_devices, "device"),
                                                   ": each host needs at least one")));
  }
  if (job.locations.contains("cluster.hosts") &&
      job.cluster.hosts != static_cast<int64_t>(hosts.size())) {
    return AtKey(job, {"cluster.hosts", "cluster.host"},
                 absl::InvalidArgumentError(StrCat("cluster.hosts = ", job.cluster.hosts,
                                                   ", but cluster.host names ", hosts.size(),
                                                   "; leave out cluster.hosts")));
  }
  HostDevices devices;
  int64_t total = 0;
  for (const Job::Host& host : hosts) {
    devices.push_back(static_cast<uint32_t>(host.devices));
    total += host.devices;
  }
  if (total == num_devices) return devices;
  return AtKey(job, {"cluster.host"},
               absl::InvalidArgumentError(
                   StrCat("the hosts have ", Counted(total, "device"), " (", ListHosts(hosts),
                          ") and the job has ", num_devices,
                          "; change the devices of a host, or the job's cluster.devices or "
                          "parallel.strategy")));
}

absl::StatusOr<std::vector<uint32_t>> ProcessDevicesOf(const Job& job, int64_t num_processes,
                                                       int64_t num_devices) {
  const std::vector<Job::Host>& hosts = job.cluster.host;
  // One process runs all.
  if (num_processes == 1) return std::vector<uint32_t>();
  if (hosts.empty()) {
    return HasOptimizerDevice(job) ? SharesOf(job, num_processes, num_devices)
                                   : std::vector<uint32_t>();
  }
  int64_t given = 0;  // processes of hosts that say how many they have
  int64_t open = 0;   // hosts that do not
  for (const Job::Host& host : hosts) {
    given += host.processes;
    if (host.processes == 0) ++open;
  }
  const int64_t left = num_processes - given;
  if (open == 0 ? left != 0 : (left < open || left % open != 0)) {
    return AtKey(job, {"cluster.processes", "cluster.host"},
                 absl::InvalidArgumentError(StrCat(
                     Counted(num_processes, "process", "es"), " cannot be spread over ",
                     Counted(static_cast<int64_t>(hosts.size()), "host"), " (", ListHosts(hosts),
                     "): give each host as many, or say how many with `processes` in "
                     "cluster.host")));
  }
  std::vector<uint32_t> devices;
  for (const Job::Host& host : hosts) {
    const int64_t count = host.processes > 0 ? host.processes : left / open;
    if (count > host.devices) {
      return AtKey(job, {"cluster.host"},
                   absl::InvalidArgumentError(StrCat(
                       "host ", host.name, " has ", Counted(count, "process", "es"), " for ",
                       Counted(host.devices, "device"), ": each process needs at least one")));
    }
    for (const uint32_t block : EvenBlocks(count, host.devices)) devices.push_back(block);
  }
  return devices;
}

absl::Status TooManySlots(int64_t num_slots, int64_t num_devices) {
  return absl::InvalidArgumentError(
      StrCat("the hosts have ", Counted(num_slots, "slot"), ", a process each, and the job has ",
             Counted(num_devices, "device"),
             ": give the hosts no more slots than that, or set --devices or --strategy"));
}

std::string ProcessNote(const Job& job, int64_t num_processes) {
  const int64_t num_hosts =
      job.cluster.host.empty() ? job.cluster.hosts : static_cast<int64_t>(job.cluster.host.size());
  if (num_processes >= num_hosts) return "";
  const std::string_view key = job.cluster.host.empty() ? "cluster.hosts" : "cluster.host";
  const auto place = job.locations.find(key);
  return StrCat("note: ", Counted(num_processes, "process", "es"), " for ",
                Counted(num_hosts, "host"),
                place == job.locations.end() ? "" : StrCat(" (", place->second, ")"),
                ": the collectives are planned for these hosts, but devices of several hosts run "
                "in one process; --procs ",
                num_hosts, " (or cluster.processes) gives each host its own\n");
}

}  // namespace penstock::cli
