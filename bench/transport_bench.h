// How fast messages move between two processes of this host, through Transport and Endpoint, and
// what UCX's own ucx_perftest reaches with the same transports.
//
// Thread rule: one measurement at a time, from a process without transports of its own: it forks.

#ifndef PENSTOCK_BENCH_TRANSPORT_BENCH_H_
#define PENSTOCK_BENCH_TRANSPORT_BENCH_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::bench {

struct TransportBenchOptions {
  std::string transports;          // as in UCX_TLS; empty: what UCX chooses
  std::vector<size_t> sizes = {};  // bytes a message; empty: 8 B to 64 MiB in steps of eight
  bool runs_perftest = true;       // with error handling on (-e), where it is installed
  int max_rounds = 100000;         // messages of one measurement
};

struct TransportBenchRow {
  size_t num_bytes = 0;
  double one_way_us = 0;   // mean, half of a round trip, both sides polling
  double bytes_per_s = 0;  // one direction, two messages in flight
  double perftest_us = 0;  // the same of ucx_perftest's tag_lat and tag_bw; 0: not measured
  double perftest_bytes_per_s = 0;
};

// Whether ucx_perftest is installed (Debian: ucx-utils).
bool HasPerftest();

// Each process polls on a core of its own where there are two.
absl::StatusOr<std::vector<TransportBenchRow>> MeasureTransport(
    const TransportBenchOptions& options);

// The share of one core that a process with an idle, connected transport takes.
absl::StatusOr<double> MeasureIdleTransport(const TransportBenchOptions& options);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_TRANSPORT_BENCH_H_
