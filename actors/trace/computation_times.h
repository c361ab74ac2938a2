// When the computations of a trace ran, and how long those of each actor typically took.
//
// On a synchronous stream an event is recorded around the kernel. On an asynchronous one it begins
// with the launch, which may be long before the kernel runs: there it begins when the computation
// before it on the same stream, that of its device and lane, has ended. Copies between the memories
// of a device and its host run beside kernels; the trace says when they began.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_TRACE_COMPUTATION_TIMES_H_
#define PENSTOCK_ACTORS_TRACE_COMPUTATION_TIMES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// Whether the event is of an actor of the plan that computes, a feed or a fetch.
bool IsComputation(const planner::Plan& plan, const TraceEvent& event);

// The events in their order, each computation from when its stream was free. REQUIRES: events of a
// device are in the order of their ends, as Session::TakeTrace gives them.
std::vector<TraceEvent> SerializeComputations(const planner::Plan& plan,
                                              absl::Span<const TraceEvent> events);

// Of each event its begin: that of SerializeComputations. REQUIRES: as above.
std::vector<int64_t> SerialBegins(const planner::Plan& plan, absl::Span<const TraceEvent> events);

// For each event, whether it is a computation beside which data of a send, a receive or a
// collective of its process moved (communication_times.h): communication takes processor time and
// bandwidth of the memory from it. `process_of_device` has a process for each device of the plan.
// REQUIRES: as above.
std::vector<bool> BesideCommunication(const planner::Plan& plan,
                                      absl::Span<const TraceEvent> events,
                                      absl::Span<const uint32_t> process_of_device);

// The median time of the computations of each actor of each device, 0 without any. Computations
// that `is_disturbed` names count only for actors with fewer than three others; empty: none is.
// REQUIRES: as above.
std::vector<std::vector<double>> MedianComputeSeconds(const planner::Plan& plan,
                                                      absl::Span<const TraceEvent> events,
                                                      const std::vector<bool>& is_disturbed = {});

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_COMPUTATION_TIMES_H_
