// Hosts that compute slower than the others of a job.
//
// What a host does at a moment may disturb a measurement, but never make it faster. So one that
// seems slow is measured again, with the others, and of each the best rate counts.
//
// Thread rule: one thread, which blocks while nodes measure.

#ifndef PENSTOCK_CLI_SLOW_HOSTS_H_
#define PENSTOCK_CLI_SLOW_HOSTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/cluster/node_description.h"
#include "planner/cluster/probed_hosts.h"

namespace penstock::cli {

// Measurements until a host counts as slow.
inline constexpr int kSlowRounds = 5;

// `measure` returns the rates of all hosts, as `rates` has them of a first measurement, and is
// called until no host seems slow, but for kSlowRounds measurements at most. No host is slow if it
// fails.
std::vector<planner::SlowHost> ConfirmSlowHosts(
    std::vector<double> rates, const std::function<absl::StatusOr<std::vector<double>>()>& measure);

// How fast a core computes, of each host in the order of their first ranks.
struct CoreRates {
  std::vector<uint32_t> first_ranks;
  std::vector<double> rates;
};

// From the rates of nodes that have measured at the same time, by rank. Nodes of a host may share
// its cores. Hosts may have different numbers of cores: a device has as many threads on each.
CoreRates CoreRatesOf(const std::vector<actors::NodeDescription>& nodes,
                      const std::vector<double>& rates);

// "note: node4 computes 18 % slower than the other hosts\n".
std::string SlowHostNote(const std::string& host, const planner::SlowHost& slow);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_SLOW_HOSTS_H_
