// From what a run measured to what its page shows (report.h): numbers, curves and tables. The
// timeline is made by report_timeline.h, the slowest operators by report_operators.h.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_REPORT_COLLECT_H_
#define PENSTOCK_CLI_REPORT_COLLECT_H_

#include <string>

#include "absl/types/span.h"
#include "cli/report.h"
#include "cli/run_report.h"

#include "actors/engine/executor.h"
#include "graph/graph.h"
#include "graph/op.h"
#include "planner/plan/plan.h"
#include "planner/search/estimate.h"

namespace penstock::cli {

struct ReportSources {
  const planner::Plan& plan;
  const RunSummary& summary;
  absl::Span<const actors::TraceEvent> events;  // may be empty
  const graph::OpRegistry& ops;
  const planner::StepEstimate* estimate = nullptr;  // null, or without groups: none
};

// All that follows from the sources; what has to do with the job, the host and the graph is left
// as it is.
void CollectReport(const ReportSources& sources, Report* report);

// Lists and, where it is small enough, a drawing of the planned graph, or why there is none.
// REQUIRES: the graph has been through lower-reshards.
void CollectGraph(const graph::Graph& graph, Report* report);

// A larger drawing is left out.
inline constexpr size_t kMaxGraphSvgBytes = 400'000;

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_COLLECT_H_
