#include "cli/slow_hosts.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>

#include "fmt/format.h"

#include "actors/cluster/core_groups.h"

namespace penstock::cli {

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

CoreRates CoreRatesOf(const std::vector<actors::NodeDescription>& nodes,
                      const std::vector<double>& rates) {
  struct Host {
    double rate = 0;
    int64_t num_cores = 0;
  };
  std::map<std::string_view, size_t> numbers;
  std::vector<Host> hosts;
  CoreRates result;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const actors::NodeDescription& node = nodes[rank];
    const auto [it, is_new] = numbers.try_emplace(node.host, hosts.size());
    if (is_new) {
      hosts.emplace_back();
      result.first_ranks.push_back(static_cast<uint32_t>(rank));
    }
    hosts[it->second].rate += rates[rank];
  }
  for (const actors::CoreGroup& group : actors::FindCoreGroups(nodes)) {
    hosts[numbers.at(nodes[group.nodes[0]].host)].num_cores += group.num_cores;
  }
  for (const Host& host : hosts) {
    result.rates.push_back(host.rate / static_cast<double>(std::max<int64_t>(host.num_cores, 1)));
  }
  return result;
}

std::string SlowHostNote(const std::string& host, const planner::SlowHost& slow) {
  return fmt::format("note: {} computes {:.0f} % slower than the other hosts\n", host,
                     100 * (1 - slow.part));
}

}  // namespace penstock::cli
