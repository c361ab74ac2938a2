// What a message from an actor to an actor costs, from the end of one kernel to the start of the
// next on another device, through Session on a plan of its own.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_MESSAGES_BENCH_H_
#define PENSTOCK_BENCH_MESSAGES_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/kernel.h"

namespace penstock::bench {

enum class Placement {
  kThreads,          // both devices in one process
  kProcesses,        // a process and a core each
  kProcessesOneCore  // two processes that share a core
};

struct MessagesBenchOptions {
  Placement placement = Placement::kThreads;
  // Before each message its sender computes for milliseconds, and the receiver falls asleep.
  bool is_asleep = false;
  uint64_t num_bytes = 8;  // a multiple of 4
  int64_t round_trips = 20000;
  int rounds = 40;
  std::vector<std::string> node_command = {"/proc/self/exe", "node"};
  const kernels::KernelRegistry* kernels = nullptr;
};

// Microseconds of one hop: kernel, send, receive. The fastest round; with is_asleep the median hop,
// from the end of the kernel before to the beginning of the kernel after.
absl::StatusOr<double> MeasureMessages(const MessagesBenchOptions& options);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_MESSAGES_BENCH_H_
