#include "cli/slow_hosts.h"

#include <algorithm>
#include <cstddef>

#include "fmt/format.h"

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

std::string SlowHostNote(const std::string& host, const planner::SlowHost& slow) {
  return fmt::format("note: {} computes {:.0f} % slower than the other hosts\n", host,
                     100 * (1 - slow.part));
}

}  // namespace penstock::cli
