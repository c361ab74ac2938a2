// How fast a job comes together: many simulated agents that share this process and join a
// coordinator through its real protocol, with TLS, and real nodes on this host.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_LAUNCH_BENCH_H_
#define PENSTOCK_BENCH_LAUNCH_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::bench {

struct LaunchBenchOptions {
  uint32_t num_agents = 4096;
  uint32_t num_threads = 2;  // that the agents share
  // Agents of a thread that are joining at a time. Agents on hosts of their own all join at once;
  // here their part of the work would delay that of the coordinator.
  uint32_t num_at_once = 128;
  std::string listen = "127.0.0.1:0";  // a Unix address: without TLS
};

struct LaunchFigures {
  double join_s = 0;              // until all have joined
  double stop_s = 0;              // until all have left
  double coordinator_cpu_us = 0;  // of the coordinator's thread, an agent, while they join
  double memory_bytes = 0;        // of this process, an agent: both ends
};

absl::StatusOr<LaunchFigures> MeasureAgents(const LaunchBenchOptions& options);

// Seconds until `count` processes of this host have joined at `listen`, as LaunchBenchOptions has
// it.
absl::StatusOr<double> MeasureNodes(uint32_t count, const std::vector<std::string>& node_command,
                                    const std::string& listen);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_LAUNCH_BENCH_H_
