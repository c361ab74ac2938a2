// Why a plan is as it is: its axes, its stages with their memory, where its predicted time goes,
// and what came next in the search.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_EXPLAIN_H_
#define PENSTOCK_CLI_EXPLAIN_H_

#include <string>

#include "absl/types/span.h"
#include "cli/checkpoint_copy.h"
#include "cli/job_graph.h"
#include "nlohmann/json_fwd.hpp"

#include "planner/plan/folded_plan.h"
#include "planner/search/estimate.h"
#include "planner/search/machine.h"
#include "planner/search/winning_change.h"

namespace penstock::cli {

// Tables of text. `estimate` is that of the plan, `changes` what would make each of the runners-up
// win (planner::RunnersUp), or empty where that was not looked for.
std::string ExplainPlan(const JobGraph& job, const planner::StepEstimate& estimate,
                        absl::Span<const planner::WinningChange> changes = {});

// The same as data: {"cluster", "prediction", "search", "runners_up"}; the last two where the
// strategy was searched for.
nlohmann::json ExplainPlanJson(const JobGraph& job, const planner::StepEstimate& estimate,
                               absl::Span<const planner::WinningChange> changes = {});

// "note: ..." where the plan is predicted not to fit into the memory of its devices; else empty.
std::string MemoryNote(const JobGraph& job, const planner::StepEstimate& estimate);

// The same from the arenas of the compiled plan, which are exact where the estimate is not, and the
// copies for checkpoints that lie beside them.
std::string MemoryNote(const planner::Machine& machine, const planner::FoldedPlan& plan,
                       const CheckpointCopies& copies = {});

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_EXPLAIN_H_
