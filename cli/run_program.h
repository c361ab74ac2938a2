// What `penstock run` is told to run, and the program that comes of it.
//
// Thread rule: pure functions but for the files that they read.

#ifndef PENSTOCK_CLI_RUN_PROGRAM_H_
#define PENSTOCK_CLI_RUN_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/environment.h"
#include "cli/job.h"
#include "cli/job_model.h"
#include "cli/report.h"

#include "planner/compile.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::cli {

// The options of `penstock run`.
struct RunOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::optional<int64_t> devices;
  std::optional<int64_t> processes;
  std::string plan;  // that the job runs by
  std::string cluster;
  std::string trace;
  std::optional<int64_t> trace_every;
  std::string svg;
  std::string report;
  std::string dump;
  std::optional<std::string> listen;
  bool insecure = false;  // nodes join without TLS
  std::optional<std::string> metrics;
  std::string strategy;
  std::string policy;
  std::string timeout;     // as of TimeLimit (option_checks.h); empty: none
  std::string log_folder;  // where nodes keep what they print; empty: nowhere
  bool resumes = false;
  bool is_dry = false;
  bool is_json = false;
};

// What is to be run: the plan as it was read back, and of a job its model.
struct RunProgram {
  planner::Plan plan;
  planner::PolicyRegistry policies;  // with the job's own
  JobModel model;                    // without a model where a plan file or a graph file is run
  std::string text;                  // the summary before the run
  planner::StepEstimate estimate;
  Report page;  // with the graph, where the report is a page
};

// The keys of a job that may be set where a plan runs: "train.steps, ...".
std::string KeysOfPlans();

// The job with the options that override its keys.
absl::StatusOr<Job> ReadOptions(const RunOptions& options);

// The plan of the file, or the one that the job is compiled to.
absl::StatusOr<RunProgram> GetProgram(const Registries& registries, const RunOptions& options,
                                      const Job& job);

// An error unless the first result of a step is a loss.
absl::Status CheckTrains(const planner::Plan& plan);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_RUN_PROGRAM_H_
