// The processes that a job of `penstock run` asks for.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_JOB_CLUSTER_H_
#define PENSTOCK_CLI_JOB_CLUSTER_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "cli/device_list.h"
#include "cli/environment.h"
#include "cli/interrupts.h"
#include "cli/job.h"
#include "cli/job_key_option.h"
#include "cli/node_output.h"
#include "cli/run_program.h"

#include "actors/cluster/cluster.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// How the job goes on from its last checkpoint, for its user; empty where it writes none. Where the
// folder holds none yet, the hint says "if one was written": nodes print it later, when they cannot
// ask any more.
std::string ResumeHintOf(const Environment& environment, const Job& job);
// The same, empty where there is no checkpoint.
std::string ResumeHintNow(const Environment& environment, const Job& job);

// What of a run its processes work with.
struct JobClusterParts {
  DeviceList devices;  // of the job
  std::shared_ptr<actors::StatusAnswers> status_answers;
  const JobKeyFile* key_file = nullptr;  // null: no process joins from elsewhere
  std::shared_ptr<NodeOutput> output;    // takes what nodes print
  // See ClusterOptions.
  std::function<void(const absl::StatusOr<std::string>& communicators,
                     const std::string& why_not_messages)>
      on_collectives;
  Interrupts* interrupts = nullptr;       // outlives the cluster's start
  actors::ClusterStart* start = nullptr;  // ends it from another thread
};

// Null where this process runs all devices. What nodes print goes to the environment, by a thread
// that may outlive the job; what the user should know of how they lie goes to `notes`.
absl::StatusOr<std::unique_ptr<actors::Cluster>> StartJobCluster(
    const Environment& environment, std::ostream& notes, const RunOptions& options, const Job& job,
    const planner::Plan& plan, JobClusterParts parts);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_CLUSTER_H_
