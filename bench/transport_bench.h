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

inline constexpr size_t kMessageSizes[] = {8,         64,      512,     4 << 10,  32 << 10,
                                           256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

struct TransportBenchOptions {
  std::string transports;          // as in UCX_TLS; empty: what UCX chooses
  std::vector<size_t> sizes = {};  // bytes a message; empty: kMessageSizes
  bool runs_perftest = true;       // where it is installed
  int max_rounds = 100000;         // messages of one measurement
};

struct MessageSpeed {
  double one_way_us = 0;   // mean, half of a round trip, both sides polling; 0: not measured
  double bytes_per_s = 0;  // one direction, several messages in flight; 0: not measured
};

struct TransportBenchRow {
  size_t num_bytes = 0;
  MessageSpeed ours;
  // ucx_perftest's tag_lat and tag_bw, with error handling on (-e), as ours has it, and off.
  MessageSpeed perftest;
  MessageSpeed plain_perftest;
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
