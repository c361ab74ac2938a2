#include "cli/slow_hosts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "fmt/format.h"

#include "base/status_macros.h"

namespace penstock::cli {
namespace {

// For nodes that are busy; one that is lost is seen otherwise.
constexpr absl::Duration kMeasureTimeout = absl::Seconds(10);

}  // namespace

std::vector<planner::SlowHost> ConfirmSlowHosts(
    std::vector<double> rates,
    const std::function<absl::StatusOr<std::vector<double>>()>& measure) {
  std::vector<planner::SlowHost> slow = planner::FindSlowHosts(rates);
  for (int round = 1; round < kSlowRounds && !slow.empty(); ++round) {
    const absl::StatusOr<std::vector<double>> again = measure();
    if (!again.ok() || again->size() != rates.size()) return {};
    for (size_t i = 0; i < rates.size(); ++i) rates[i] = std::max(rates[i], (*again)[i]);
    slow = planner::FindSlowHosts(rates);
  }
  return slow;
}

std::string SlowHostNote(const std::string& host, const planner::SlowHost& slow) {
  return fmt::format("note: {} computes {:.0f} % slower than the other hosts\n", host,
                     100 * (1 - slow.part));
}

HostRates RatesOfHosts(const std::vector<actors::NodeDescription>& nodes,
                       const std::vector<double>& rates_of_nodes) {
  HostRates result;
  std::map<std::string_view, size_t> index_of;
  std::vector<uint32_t> cores;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const actors::NodeDescription& node = nodes[rank];
    const auto [entry, is_new] = index_of.emplace(node.host, result.hosts.size());
    if (is_new) {
      result.hosts.push_back(node.host);
      result.rates.push_back(0);
      cores.push_back(0);
    }
    result.rates[entry->second] += rates_of_nodes[rank];
    uint32_t& sum = cores[entry->second];
    sum = std::min(sum + node.num_cores, std::max(node.host_cores, uint32_t{1}));
  }
  for (size_t i = 0; i < cores.size(); ++i) result.rates[i] /= std::max(cores[i], uint32_t{1});
  return result;
}

void NoteSlowHosts(actors::Cluster& cluster, std::ostream& notes) {
  const std::vector<actors::NodeDescription>& nodes = cluster.nodes();
  std::set<std::string_view> hosts;
  for (const actors::NodeDescription& node : nodes) hosts.insert(node.host);
  if (hosts.size() < 2) return;
  const auto measure = [&]() -> absl::StatusOr<std::vector<double>> {
    ASSIGN_OR_RETURN(const std::vector<double> rates, cluster.MeasureCompute(kMeasureTimeout));
    return RatesOfHosts(nodes, rates).rates;
  };
  absl::StatusOr<std::vector<double>> rates = measure();
  if (!rates.ok()) return;  // what is wrong shows when the job starts
  const std::vector<std::string> names =
      RatesOfHosts(nodes, std::vector<double>(nodes.size(), 0)).hosts;
  for (const planner::SlowHost& slow : ConfirmSlowHosts(*std::move(rates), measure)) {
    notes << SlowHostNote(names[static_cast<size_t>(slow.host)], slow) << std::flush;
  }
}

}  // namespace penstock::cli
