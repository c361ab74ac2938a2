// What part of a traced communication was waiting for the other side, and what part was moving
// data. A receive is posted long before its data are sent, so its duration says little.
//
// Example: device 1 posts a receive at 2 ms, device 0 sends at 9 ms and is done at 10 ms. Device 1
// computes and notices the data at 14 ms. Of the receive's 12 ms, one was transfer. In the next
// step device 0 has no core while it sends, from 29 to 34 ms: that transfer, too, took 1 ms.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_TRACE_COMMUNICATION_TIMES_H_
#define PENSTOCK_ACTORS_TRACE_COMMUNICATION_TIMES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// Whether the event is of a send, a receive or a collective that the plan has.
bool IsCommunication(const planner::Plan& plan, const TraceEvent& event);

struct TransferTime {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // Of begin_ns..end_ns, how long the bytes need. In the rest, a thread that had to start or notice
  // the transfer had no core or was busy, or the link moved other data.
  int64_t moving_ns = 0;
};

// For each event, when its data moved: from when the last of those that take part in the send and
// receive, or in the collective, had started it, to when the first of them was done. The event's
// own time where it is no communication or where no other side was recorded. Always within the
// event's own time, so that clocks of several hosts cannot give negative times.
//
// The time that bytes need is at most that of the fastest communication in the trace, of as many
// bytes or more, between the same devices: from the same sender to the same receiver, or by the
// same kind of collective in the same group.
std::vector<TransferTime> TransferTimes(const planner::Plan& plan,
                                        absl::Span<const TraceEvent> events);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_COMMUNICATION_TIMES_H_
