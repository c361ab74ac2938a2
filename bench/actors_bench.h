// What the engine itself costs: actors whose kernels do nothing.
//
// Thread rule: one measurement at a time.

#ifndef PENSTOCK_BENCH_ACTORS_BENCH_H_
#define PENSTOCK_BENCH_ACTORS_BENCH_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"

namespace penstock::bench {

struct ActorsBenchOptions {
  uint32_t num_actors = 10000;
  double seconds = 0.5;  // of measuring, about
  // Heap allocations of this process so far, where the caller counts them; null: not measured.
  std::function<uint64_t()> count_allocations = nullptr;
};

struct ActorsBenchResult {
  double ns_per_act = 0;            // the fastest step's
  double allocations_per_act = 0;   // -1: not measured
  double allocations_per_step = 0;  // the same, undivided: what a step costs whatever its size
  double step_us = 0;               // the fastest step, from Submit to its completion
};

// One device, one phase, each actor with two inputs and two consumers, run through a Session.
absl::StatusOr<ActorsBenchResult> MeasureActs(const ActorsBenchOptions& options);

struct WakeLatency {
  double polling_ns = 0;   // median, a message to a thread that polls
  double sleeping_ns = 0;  // median, to one that sleeps
};

// From Notify on one thread to the polling loop's answer on another, half of a round trip. Polling
// needs a core a thread.
WakeLatency MeasureWakeLatency(int rounds);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_ACTORS_BENCH_H_
