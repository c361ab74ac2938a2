// What the engine itself costs: actors whose kernels do nothing, in the shapes that jobs have.
//
// Thread rule: one measurement at a time.

#ifndef PENSTOCK_BENCH_ACTORS_BENCH_H_
#define PENSTOCK_BENCH_ACTORS_BENCH_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"

#include "kernels/kernel.h"
#include "planner/plan/plan.h"

namespace penstock::bench {

enum class ActsShape : uint8_t {
  kPhase,          // one phase; actor i reads what i - 1 and i - 2 wrote
  kCommunication,  // the same, while receives and an all_reduce are under way from the first, and
                   // arrive before the last
  kStream,         // the same, launched on a device whose streams are asynchronous
  kCredits,        // a phase F and a phase B, 4 micro-batches; every F actor has a channel to a B
                   // actor, and activations of 2 micro-batches are kept
  kChain,          // a phase for every actor, joined to the next by one register; 2 micro-batches,
                   // so the second waits for credits
};
inline constexpr ActsShape kActsShapes[] = {ActsShape::kPhase, ActsShape::kCommunication,
                                            ActsShape::kStream, ActsShape::kCredits,
                                            ActsShape::kChain};
std::string_view Name(ActsShape shape);  // "phase", ...

struct ActsBenchOptions {
  ActsShape shape = ActsShape::kPhase;
  uint32_t num_actors = 10000;  // whose kernels run; even
  uint32_t num_transfers = 4;   // that kCommunication receives in a step, at least 1
  double seconds = 0.5;         // of measuring, about
  // Heap allocations of this process so far, where the caller counts them; null: not measured.
  std::function<uint64_t()> count_allocations = nullptr;
};

struct ActsBenchResult {
  int64_t acts_per_step = 0;
  double ns_per_act = 0;            // of the executor's busy time, in the fastest step
  double communication_us = 0;      // of that time in a step, for starting and completing its
                                    // communication
  double step_us = 0;               // the fastest step, from submission to its result
  double allocations_per_step = 0;  // -1: not measured
};

// What is measured: device 0 of this plan, and the kernels of its operator.
planner::Plan ActsPlan(const ActsBenchOptions& options);
kernels::KernelRegistry ActsKernels();

// Device 0 of a plan of the shape, run through a Session.
absl::StatusOr<ActsBenchResult> MeasureActs(const ActsBenchOptions& options);

struct Latency {
  double median_us = 0;
  double fastest_us = 0;
};

struct WakeLatency {
  Latency polling;   // the executor polls, because the step before has just ended
  Latency sleeping;  // it sleeps
};

// From the submission of a step of one act to its completion on the device.
absl::StatusOr<WakeLatency> MeasureWakeLatency(int rounds);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_ACTORS_BENCH_H_
