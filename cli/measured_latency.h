// The latency of the links between processes, as a run shows it: for the replayed bound.
//
// Example: over a link of 1 GB/s, 1 MB takes 1.3 ms, and messages of 8 bytes take 0.2 ms or more.
// The alpha-beta model (planner/cost/communication_cost.h) explains the first with a latency of
// 0.3 ms, the second with 0.2 ms. The lower one is that of the link; in the other, something else
// was slow.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_CLI_MEASURED_LATENCY_H_
#define PENSTOCK_CLI_MEASURED_LATENCY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// Seconds: the lowest latency with which the model explains a recorded communication between two or
// more processes over links of `bytes_per_s`. Nothing if none was recorded on both sides.
// REQUIRES: `process_of_device` has an entry for each device of the plan.
std::optional<double> MeasuredLatency(const planner::Plan& plan,
                                      absl::Span<const actors::TraceEvent> events,
                                      const std::vector<uint32_t>& process_of_device,
                                      double bytes_per_s);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MEASURED_LATENCY_H_
