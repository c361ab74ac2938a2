// What the traced steps of a run say of a step: its critical path, and how long it would take at
// the kernels' median times on idle links.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_ANALYSE_TRACE_H_
#define PENSTOCK_CLI_ANALYSE_TRACE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "cli/job.h"

#include "actors/cluster/cluster.h"
#include "actors/session/session.h"
#include "actors/trace/critical_path.h"
#include "actors/trace/trace.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::cli {

// About how many steps of a run are traced for its summary alone.
inline constexpr int64_t kSampledSteps = 5;

// Whether steps of a run are traced for its summary, which tells what communication costs: there is
// some, and steps are not too long to be analysed.
bool IsSampled(const planner::Plan& plan);

// What a run has recorded.
struct TracedRun {
  const planner::Plan& plan;
  absl::Span<const actors::TraceEvent> events;
  absl::Span<const actors::StepWindow> steps;       // that the process of the run has measured
  int64_t every = 1;                                // one step in so many was traced
  absl::Span<const actors::NodeDescription> nodes;  // none: one process ran all devices
  const actors::SharedCores& cores;
};

struct TraceAnalysis {
  std::optional<actors::StepRange> steps;                             // that were traced as a whole
  std::optional<actors::CriticalPath> path;                           // of a step of median length
  actors::MeanPath mean_path;                                         // where there is a path
  double replayed_step_s = std::numeric_limits<double>::quiet_NaN();  // NaN: not known
};

// Of the last traced steps: enough for medians and means, however long the run.
TraceAnalysis AnalyseTrace(const TracedRun& run, const Job& job,
                           const planner::PolicyRegistry& policies);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_ANALYSE_TRACE_H_
