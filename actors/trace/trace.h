// Writes what executors have recorded for people: Chrome's trace format, which Perfetto opens, and
// a drawing of one step.
//
// Thread rule: pure functions but for the stream they write to.

#ifndef PENSTOCK_ACTORS_TRACE_TRACE_H_
#define PENSTOCK_ACTORS_TRACE_TRACE_H_

#include <ostream>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// All events, as JSON: a process a device; in it a thread for the phases of each lane and one for
// the actors of each kind. `plan` is the one that was run. Times begin with the first event. A
// slice is named after its phase or actor; its arguments hold the step (from 1), the phase, the
// micro-batch and, of communication, how long it waited (communication_times.h).
void WriteTraceJson(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                    std::ostream& out);

// The time that a step took: from the end of the step before it to its own end, on SteadyClock.
struct StepWindow {
  int64_t step = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// What the devices did in a step's window as SVG: a row a device with its compute and per-step
// lanes; below it thin rows of what its links did, drawn while data moved: one each for sends,
// receives and collectives, where the plan has them; F, B, W and once-a-step phases in colours of
// their own, with micro-batch numbers where there is room; an axis in ms and a legend. Work of
// other steps in the window is drawn pale. Draws an empty axis without events.
void WriteTimelineSvg(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                      const StepWindow& window, std::ostream& out);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_TRACE_H_
