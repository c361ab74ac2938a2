// What the commands say of a plan.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_PLAN_SUMMARY_H_
#define PENSTOCK_CLI_PLAN_SUMMARY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cli/checkpoint_copy.h"
#include "cli/job.h"
#include "cli/job_graph.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// The devices of a job, for people: "4 devices of 1 thread", "8 GPUs", "2 devices of 1 thread and 2
// GPUs". Those of a cluster that the job names have their kinds instead: "16 devices
// (H100-SXM5-80GB)".
std::string DescribeDevices(const Job& job, int64_t num_devices, int64_t threads);

// A few lines: layout, size, memory and predicted time. `devices` is what DescribeDevices has of
// the plan's job, `copies` is a part of the memory.
std::string SummarizePlan(const planner::Plan& plan, std::string_view devices,
                          const CheckpointCopies& copies = {});
absl::StatusOr<std::string> SummarizePlan(const planner::FoldedPlan& plan, std::string_view devices,
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
