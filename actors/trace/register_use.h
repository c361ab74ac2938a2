// What was in use over time, worked out from recorded phases: credits and tokens of the edges
// between a device's phases, the bytes of its channel registers, and its communications. Nothing is
// counted while the plan runs.
//
// Example: F runs once a micro-batch, and so does B, which reads what F has stashed. The first F
// runs from 0 to 2 ms, the second from 2 to 4 ms, the first B from 5 to 8 ms, the second from 8 to
// 11 ms. One credit of the edge is in use from 0 ms and two from 2 ms; the first is given back at
// 8 ms. One token waits from 2 to 4 ms, two from 4 to 5 ms, one from 5 to 8 ms.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_TRACE_REGISTER_USE_H_
#define PENSTOCK_ACTORS_TRACE_REGISTER_USE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// The value from `at_ns` to the next sample; 0 before the first.
struct UseSample {
  int64_t at_ns = 0;
  int64_t value = 0;
  friend bool operator==(const UseSample&, const UseSample&) = default;
};

// Channels from one phase to another that pass tokens in the same way.
struct EdgeUse {
  uint32_t producer_phase = 0;
  uint32_t consumer_phase = 0;
  uint32_t capacity = 0;  // credits in all
  // From the start of the producer's phase to the end of the consumer's.
  std::vector<UseSample> credits_in_use;
  // From the end of the producer's phase to the start of the consumer's.
  std::vector<UseSample> tokens_waiting;
};

struct DeviceUse {
  std::vector<EdgeUse> edges;  // that carry values; without those of which nothing was recorded
  // Of channel registers, each from the start of the phase that fills it to the end of the last one
  // that reads it. Bytes that several of them have meanwhile count once.
  std::vector<UseSample> channel_bytes;
  // Sends, receives and collectives that were started and not complete.
  std::vector<UseSample> communications;
};

// Of each device of the plan. Only values of which both the producing and the consuming phase were
// recorded count, so at the ends of a trace the figures are low. Takes O(n log n) for n tokens.
std::vector<DeviceUse> UseOverTime(const planner::Plan& plan, absl::Span<const TraceEvent> events);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_REGISTER_USE_H_
