// When the computations of a trace ran, and how long those of each actor typically took.
//
// On a synchronous stream an event is recorded around the kernel. On an asynchronous one it begins
// with the launch, which may be long before the kernel runs: there it begins when the computation
// before it on the same stream, that of its device and lane, has ended.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_TRACE_COMPUTATION_TIMES_H_
#define PENSTOCK_ACTORS_TRACE_COMPUTATION_TIMES_H_

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

// Of each device, of each of its actors: the median time of its computations, 0 without any.
// REQUIRES: as above.
std::vector<std::vector<double>> MedianComputeSeconds(const planner::Plan& plan,
                                                      absl::Span<const TraceEvent> events);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_COMPUTATION_TIMES_H_
