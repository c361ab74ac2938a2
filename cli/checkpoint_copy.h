// The memory for the copies of states that go into the checkpoints of a job, beside what its
// devices need: each process copies the tiles that its devices hold, each once.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_CHECKPOINT_COPY_H_
#define PENSTOCK_CLI_CHECKPOINT_COPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/job.h"

#include "graph/graph.h"
#include "graph/training.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"
#include "planner/search/estimate.h"
#include "planner/search/machine.h"

namespace penstock::cli {

// Of the processes whose devices begin in [first, first + count); 0 without checkpoints.
uint64_t CheckpointCopyBytes(const Job& job, const planner::Plan& plan, uint32_t first = 0,
                             uint32_t count = UINT32_MAX);

// For each device. A tile that several devices of a process hold is copied once, for the
// first of them. Copies lie in the memory of the host: for a CPU, that of the device.
struct CheckpointCopies {
  std::vector<uint64_t> device_bytes = {};  // empty: no checkpoints
  std::vector<uint64_t> host_bytes = {};    // of devices with a memory of their own

  uint64_t total() const;  // of all devices, on both
};
CheckpointCopies CheckpointCopiesOf(const Job& job, const planner::Plan& plan);
absl::StatusOr<CheckpointCopies> CheckpointCopiesOf(const Job& job,
                                                    const planner::FoldedPlan& plan);

// Adds them to what each group of devices is predicted to need. `device_groups`: see
// planner::CompileOptions.
void AddCheckpointCopies(const CheckpointCopies& copies, const std::vector<int>& device_groups,
                         planner::StepEstimate* estimate);

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
