// Hosts that compute slower than the others of a job.
//
// What a host does at a moment may disturb a measurement, but never make it faster. So one that
// seems slow is measured again, with the others, and of each the best rate counts.
//
// Thread rule: one thread, which blocks while nodes measure.

#ifndef PENSTOCK_CLI_SLOW_HOSTS_H_
#define PENSTOCK_CLI_SLOW_HOSTS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/cluster/probed_hosts.h"

namespace penstock::cli {

// Measurements until a host counts as slow.
inline constexpr int kSlowRounds = 5;

// `measure` returns the rates of all hosts, as `rates` has them of a first measurement, and is
// called until no host seems slow, but for kSlowRounds measurements at most. No host is slow if it
// fails.
std::vector<planner::SlowHost> ConfirmSlowHosts(
    std::vector<double> rates, const std::function<absl::StatusOr<std::vector<double>>()>& measure);

// "note: node4 computes 18 % slower than the other hosts\n".
std::string SlowHostNote(const std::string& host, const planner::SlowHost& slow);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_SLOW_HOSTS_H_
