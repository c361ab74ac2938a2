// What the commands say of a plan.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_PLAN_SUMMARY_H_
#define PENSTOCK_CLI_PLAN_SUMMARY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/checkpoint_copy.h"
#include "cli/job_graph.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// A few lines: layout, size, memory and predicted time. `copies` is a part of the memory.
std::string SummarizePlan(const planner::Plan& plan, const CheckpointCopies& copies = {});
absl::StatusOr<std::string> SummarizePlan(const planner::FoldedPlan& plan,
                                          const CheckpointCopies& copies = {});

// "gpt, 3.2M parameters": one line, with how the strategy was chosen where the job left it open.
std::string SummarizeJob(const JobGraph& job);

// The largest buffers for collectives of a device, beside its arena: on one host, and where no
// device can read another's memory.
struct CollectiveBuffers {
  uint64_t on_host_bytes = 0;
  uint64_t remote_bytes = 0;
};
CollectiveBuffers PeakCollectiveBuffers(const planner::Plan& plan);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PLAN_SUMMARY_H_
