#include "cli/simulated_trace.h"

#include <cmath>

namespace penstock::cli {

std::vector<actors::TraceEvent> TraceOf(absl::Span<const planner::SimulatedEvent> events,
                                        double ticks_per_s) {
  const auto ticks = [ticks_per_s](double seconds) { return std::llround(ticks_per_s * seconds); };
  std::vector<actors::TraceEvent> trace;
  trace.reserve(events.size());
  for (const planner::SimulatedEvent& event : events) {
    actors::TraceEvent& to = trace.emplace_back();
    to.device = event.device;
    to.actor = event.actor;
    to.phase = event.phase;
    to.microbatch = event.microbatch;
    to.step = event.step;
    to.begin_ns = ticks(event.begin_s);
    to.end_ns = ticks(event.end_s);
  }
  return trace;
}

}  // namespace penstock::cli
