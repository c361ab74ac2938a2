// The operators and communications that took most of a trace.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_CLI_REPORT_OPERATORS_H_
#define PENSTOCK_CLI_REPORT_OPERATORS_H_

#include <optional>

#include "absl/types/span.h"
#include "cli/report.h"

#include "actors/engine/executor.h"
#include "actors/trace/critical_path.h"
#include "graph/op.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

inline constexpr size_t kMaxReportOperators = 25;

// Fills in Report::operators: means of the steps `traced`, without the first of several, which
// warms up. Actors of one stage and kind of phase count together if their names differ in the
// layer, or in a number at the end, alone. A communication counts while its data move.
void CollectOperators(const planner::Plan& plan, absl::Span<const actors::TraceEvent> events,
                      const graph::OpRegistry& ops, std::optional<actors::StepRange> traced,
                      Report* report);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_OPERATORS_H_
