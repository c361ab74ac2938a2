#include "cli/replayed_links.h"

#include <map>
#include <memory>
#include <utility>

#include "cli/job_machine.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::cli {
namespace {

using planner::LinkRates;

// Whose levels describe the links between processes; nothing where none is described.
std::optional<planner::Cluster> DescribedCluster(const Job& job, int64_t num_devices) {
  if (job.cluster.file.empty() && job.cluster.networks.empty()) return std::nullopt;
  absl::StatusOr<planner::Machine> machine = MachineOf(job, num_devices);
  if (!machine.ok()) return std::nullopt;  // a finished plan may not fit it
  return std::move(machine->cluster);
}

}  // namespace

ReplayedLinks LinksOfProcesses(
    const Job& job, const std::vector<uint32_t>& process_of_device,
    const std::function<std::optional<double>(double bytes_per_s)>& measure_latency) {
  std::optional<double> bytes_per_s;
  if (job.cluster.link_gbit_per_s.has_value()) {
    bytes_per_s = *job.cluster.link_gbit_per_s * 1e9 / 8;
  }
  std::optional<double> latency_s;
  if (job.cluster.link_latency_us.has_value()) latency_s = *job.cluster.link_latency_us * 1e-6;
  std::optional<planner::Cluster> found =
      DescribedCluster(job, static_cast<int64_t>(process_of_device.size()));
  if (!found.has_value()) {
    LinkRates rates;
    rates.bytes_per_s = bytes_per_s.value_or(rates.bytes_per_s);
    if (!latency_s.has_value()) latency_s = measure_latency(rates.bytes_per_s);
    rates.latency_s = latency_s.value_or(rates.latency_s);
    return [rates](uint32_t from, uint32_t to) { return from == to ? LinkRates() : rates; };
  }
  std::map<uint32_t, int64_t> first_device;  // of each process
  for (size_t i = 0; i < process_of_device.size(); ++i) {
    first_device.emplace(process_of_device[i], static_cast<int64_t>(i));
  }
  const auto cluster = std::make_shared<const planner::Cluster>(*std::move(found));
  return [=, first_device = std::move(first_device)](uint32_t from, uint32_t to) {
    if (from == to) return LinkRates();
    const int64_t a = first_device.at(from);
    const int64_t b = first_device.at(to);
    return LinkRates{latency_s.value_or(cluster->PathLatencyS(a, b)),
                     bytes_per_s.value_or(cluster->PathBytesPerS(a, b))};
  };
}

}  // namespace penstock::cli
