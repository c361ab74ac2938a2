// From a job to the graph that the planner compiles: training step, strategy, stages.
//
// Thread rule: pure functions but for the files that a job names.

#ifndef PENSTOCK_CLI_JOB_GRAPH_H_
#define PENSTOCK_CLI_JOB_GRAPH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/environment.h"
#include "cli/job.h"
#include "cli/job_model.h"

#include "graph/graph.h"
#include "graph/models/model.h"
#include "planner/compile.h"
#include "planner/search/machine.h"
#include "planner/search/search.h"

namespace penstock::cli {

// What a search for a strategy read, for questions about its result.
struct JobSearch {
  graph::Graph forward;
  std::vector<graph::SplitHint> hints;
  planner::Machine machine;
  planner::SearchProblem problem;  // of the above, and of the policies of the JobGraph
};

// A job, ready to be compiled (cli/compile_job.h).
struct JobGraph {
  JobModel model;
  graph::Graph graph;  // the training step, sharded and staged
  // The keys that decide what the graph computes, defaults too, with their values.
  std::vector<planner::ProgramSetting> settings;
  std::string strategy;  // "dp=2,tp=2,pp=1"
  int64_t microbatches = 1;
  int64_t num_devices = 1;
  int chunks_per_group = 1;                          // see planner::CompileOptions
  std::optional<planner::Placement> placement = {};  // likewise
  bool optimizer_on_host = false;                    // likewise
  std::vector<int> device_groups = {};               // likewise
  planner::PolicyRegistry policies;                  // with the job's own
  std::string policy;                                // the job's, or what a search chose
  // The policy for each of the layouts that it chooses among (policy/stage_layouts.h); empty: none.
  std::vector<std::shared_ptr<const planner::Policy>> layouts = {};
  bool has_chosen_chunks = false;           // of them, as the strategy leaves open
  std::optional<planner::Machine> machine;  // where it is to run
  // How the strategy was found, where the job left it open and its graph has no mesh.
  std::optional<planner::SearchResult> search;
  std::shared_ptr<const JobSearch> searched;  // with it; else null
  std::string note;   // how the strategy was chosen, where the job left it open
  std::string notes;  // "note: ...", a line for each thing to know before the run
  int64_t num_parameters = 0;
};

absl::StatusOr<JobGraph> BuildJobGraph(const Registries& registries, const Job& job);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_GRAPH_H_
