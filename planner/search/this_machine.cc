#include "planner/search/this_machine.h"

#include <algorithm>
#include <utility>

#include "base/machine.h"
#include "base/status_macros.h"
#include "planner/cluster/default_core.h"
#include "planner/cost/communication_cost.h"

namespace penstock::planner {
namespace {

// Between devices that share cores: a message wakes a thread that sleeps on the core of another
// (penstock bench messages, processes_one_core).
constexpr double kWakeupS = 6e-5;

// What the protocol of a network takes of a core for each byte that one end sends and one that it
// receives (bench/overlap, "comm cpu" by gradient bytes, at 1 and 10 Gbit/s).
constexpr double kNetworkCoreSecondsPerByte = 1.5e-9;

}  // namespace

DeviceKind CpuDevice(int64_t num_threads, int64_t memory_bytes) {
  const auto cores = static_cast<double>(num_threads);
  DeviceKind kind = DefaultCore();
  kind.name = "cpu";
  kind.memory_bytes = std::clamp<int64_t>(memory_bytes, 1, kMaxMemoryBytes);
  kind.memory_bytes_per_s *= cores;
  for (double& rate : kind.peak_flops_per_s) rate *= cores;
  return kind;
}

absl::Status ChargeCommunication(Machine* machine) {
  machine->core_shares = {1};  // copies through shared memory take a core all the time
  for (int l = 1; l < machine->cluster.num_levels(); ++l) {
    const double bytes_per_s = machine->cluster.level(l).bytes_per_s;
    machine->core_shares.push_back(std::min(kNetworkCoreSecondsPerByte * bytes_per_s, 1.0));
  }
  const bool share_cores =
      std::any_of(machine->core_groups.begin(), machine->core_groups.end(),
                  [](const CoreGroup& group) { return group.num_devices > group.num_at_once; });
  if (!share_cores) return absl::OkStatus();
  ClusterSpec spec = machine->cluster.spec();
  NetworkLevel& host = spec.levels.front();
  host.latency_s = std::max(host.latency_s, kWakeupS);
  ASSIGN_OR_RETURN(machine->cluster, Cluster::Create(std::move(spec)));
  return absl::OkStatus();
}

absl::StatusOr<Machine> MachineOfThisHost(int64_t num_devices, int64_t num_threads) {
  const auto memory =
      static_cast<int64_t>(std::min(MachineMemoryBytes(), static_cast<uint64_t>(kMaxMemoryBytes)));
  ClusterSpec spec;
  spec.name = "this machine";
  spec.kinds.push_back(CpuDevice(num_threads, memory / num_devices));
  const LinkRates on_host;
  NetworkLevel host;
  host.name = "host";
  host.fan_out = {num_devices};
  host.bytes_per_s = on_host.bytes_per_s;
  host.latency_s = on_host.latency_s;
  spec.levels.push_back(host);
  ASSIGN_OR_RETURN(Cluster cluster, Cluster::Create(std::move(spec)));
  Machine machine{std::move(cluster)};
  const int64_t at_once = std::max<int64_t>(UsableCores() / num_threads, 1);
  machine.core_groups.push_back({num_devices, at_once});
  RETURN_IF_ERROR(ChargeCommunication(&machine));
  return machine;
}

}  // namespace penstock::planner
