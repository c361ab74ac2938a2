// How long collectives take between processes of this host, one device each, over shared memory.
//
// The size of a collective is the bytes that one rank brings: the whole vector of an all_reduce,
// reduce_scatter and all_to_all, a rank's part of an all_gather.
//
// Thread rule: one measurement at a time, from a process without transports of its own: it forks.

#ifndef PENSTOCK_BENCH_COLLECTIVES_BENCH_H_
#define PENSTOCK_BENCH_COLLECTIVES_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/collective.h"

namespace penstock::bench {

// One thing to measure: a collective of f32, all_reduce in place, by an algorithm and in chunks.
struct CollectiveCase {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  size_t num_bytes = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kDirect;
  int64_t chunk_bytes = 256 << 10;
  // Instead: every process copies its input to its output, until the last is ready.
  bool is_copy = false;
};

struct CollectivesBenchOptions {
  int num_processes = 2;
  // Network namespaces that hold the processes, in blocks, each a host of its own that is reached
  // by its eth0; empty: this one. To enter others takes a privileged user.
  std::vector<std::string> hosts;
  std::string transports;  // as in UCX_TLS; empty: what UCX chooses
  std::vector<CollectiveCase> cases;
  int max_rounds = 1000;  // runs of one measurement
};

// Microseconds by case: the median on rank 0. Each collective is run once with known data and its
// result checked, then run back to back.
absl::StatusOr<std::vector<double>> MeasureCollectives(const CollectivesBenchOptions& options);

// The least that a process has to read and write for a collective of size 1: its input, or what of
// the others' inputs makes its output, and its output. A copy reads and writes 2.
double LeastTraffic(CollectiveKind kind, int num_processes);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_COLLECTIVES_BENCH_H_
