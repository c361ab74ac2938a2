// Simulated events in the form in which executors record theirs.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_CLI_SIMULATED_TRACE_H_
#define PENSTOCK_CLI_SIMULATED_TRACE_H_

#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "planner/simulator/simulate_plan.h"

namespace penstock::cli {

// `ticks_per_s`: what begin_ns and end_ns count, for comparing events that are closer than a
// nanosecond.
std::vector<actors::TraceEvent> TraceOf(absl::Span<const planner::SimulatedEvent> events,
                                        double ticks_per_s = 1e9);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_SIMULATED_TRACE_H_
