// The groups of `penstock bench` whose metrics take more than a loop over cases. Each measures what
// matches the filter, and prints nothing.
//
// Thread rule: one measurement at a time.

#ifndef PENSTOCK_CLI_BENCH_GROUPS_H_
#define PENSTOCK_CLI_BENCH_GROUPS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::cli {

struct BenchOptions {
  std::string name;    // of the group
  std::string filter;  // a regular expression over the names of metrics
  std::string hosts;
  bool is_list = false;
  bool is_json = false;
};

struct BenchMetric {
  std::string name;
  double value = 0;
  std::string unit;
};

struct BenchReport {
  std::vector<BenchMetric> metrics;
  std::string table;  // for people; empty: a line a metric
};

// What the engine costs (bench/actors_bench.h).
absl::StatusOr<BenchReport> BenchActors(const BenchOptions& asked);

// Messages between two processes of this host, and beside them what ucx_perftest reaches; the
// ratios say how many times its time is taken, and what part of its bandwidth is reached.
absl::StatusOr<BenchReport> BenchTransport(const BenchOptions& asked);

// Collectives between processes of this host, or of the network namespaces `hosts`, beside the time
// that the memory needs for what every process has to read and write at least, at the speed of
// copies that all make at once.
absl::StatusOr<BenchReport> BenchCollectives(const BenchOptions& asked);

// Messages from a kernel to a kernel on another device.
absl::StatusOr<BenchReport> BenchMessages(const BenchOptions& asked);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_BENCH_GROUPS_H_
