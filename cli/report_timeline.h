// The timeline of a step for its page: slices of phases, kernels and communications of some of the
// devices, and the critical path through them.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_CLI_REPORT_TIMELINE_H_
#define PENSTOCK_CLI_REPORT_TIMELINE_H_

#include "absl/types/span.h"
#include "cli/report.h"

#include "actors/engine/executor.h"
#include "actors/trace/critical_path.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// Of more, the longest are kept.
inline constexpr size_t kMaxPhaseSlices = 2000;
inline constexpr size_t kMaxCommunicationSlices = 2500;
inline constexpr size_t kMaxKernelSlices = 16'000;
inline constexpr size_t kMaxPathSlices = 1000;
// Of more devices, the first ones of each stage.
inline constexpr size_t kMaxTimelineRows = 24;

// What the devices did in the window of the path's step, work of other steps included.
// Communication is drawn while its data moved.
ReportTimeline MakeTimeline(const planner::Plan& plan, absl::Span<const actors::TraceEvent> events,
                            const actors::CriticalPath& path);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_TIMELINE_H_
