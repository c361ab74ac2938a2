// The memory for the copies of states that go into the checkpoints of a job, beside what its
// devices need: each process copies the tiles that its devices hold, each once.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_CHECKPOINT_COPY_H_
#define PENSTOCK_CLI_CHECKPOINT_COPY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/job.h"

#include "graph/graph.h"
#include "graph/training.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"
#include "planner/search/machine.h"

namespace penstock::cli {

// Of the processes whose devices begin in [first, first + count); 0 without checkpoints.
uint64_t CheckpointCopyBytes(const Job& job, const planner::Plan& plan, uint32_t first = 0,
                             uint32_t count = UINT32_MAX);

// Of all processes, where the plan may be too large to expand.
absl::StatusOr<uint64_t> CheckpointCopyBytes(const Job& job, const planner::FoldedPlan& plan);

// The machine without the memory for these copies, for a search of a strategy for `forward`, whose
// plans are not there yet: each state is copied at least once, in equal parts on all devices. The
// same machine without checkpoints.
absl::StatusOr<planner::Machine> WithoutCheckpointCopy(const Job& job, const graph::Graph& forward,
                                                       const graph::TrainingOptions& training,
                                                       int64_t num_devices,
                                                       planner::Machine machine);

// A line for the summary of a plan; empty without checkpoints.
std::string CheckpointCopyNote(const Job& job, uint64_t num_bytes);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_CHECKPOINT_COPY_H_
