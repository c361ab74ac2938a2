// Writes what executors have recorded for people: Chrome's trace format, which Perfetto opens, and
// a drawing of one step.
//
// Thread rule: pure functions but for the stream they write to.

#ifndef PENSTOCK_ACTORS_TRACE_H_
#define PENSTOCK_ACTORS_TRACE_H_

#include <ostream>
#include <vector>

#include "absl/types/span.h"

#include "actors/executor.h"
#include "planner/plan.h"

namespace penstock::actors {

// All events, as JSON: a process a device; in it a thread for the phases of each lane and one for
// the actors of each kind. `plan` is the one that was run. Times begin with the first event.
void WriteTraceJson(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                    std::ostream& out);

// The phases of step `step` as SVG: a row a device with its compute and once lanes, below it a thin
// row of communication; F, B, W and once-a-step phases in colours of their own, with micro-batch
// numbers where there is room; an axis in ms and a legend. Draws an empty axis without events.
void WriteTimelineSvg(const planner::Plan& plan, absl::Span<const TraceEvent> events, int64_t step,
                      std::ostream& out);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_H_
