// From a job to the graph that the planner compiles: model, training step, strategy, stages.
//
// Thread rule: pure functions but for the files that a job names.

#ifndef PENSTOCK_CLI_JOB_GRAPH_H_
#define PENSTOCK_CLI_JOB_GRAPH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/device_list.h"
#include "cli/environment.h"
#include "cli/job.h"

#include "graph/graph.h"
#include "graph/models/model.h"
#include "planner/compile.h"
#include "planner/plan/plan.h"
#include "planner/search/estimate.h"
#include "planner/search/machine.h"
#include "planner/search/search.h"
#include "planner/strategy/strategy.h"

namespace penstock::cli {

// A model by name with all its sizes.
struct JobModel {
  const graph::Model* model = nullptr;  // null: the job names a file
  graph::ModelConfig config;
  DType precision = DType::kF32;  // see planner::CompileOptions
};

struct JobGraph {
  JobModel model;
  graph::Graph graph;  // the training step, sharded and staged
  // The keys that decide what the graph computes, defaults too, with their values.
  std::vector<planner::ProgramSetting> settings;
  std::string strategy;  // "dp=2,tp=2,pp=1"
  int64_t microbatches = 1;
  int64_t num_devices = 1;
  int chunks_per_group = 1;                 // see planner::CompileOptions
  std::vector<int> device_groups = {};      // likewise
  planner::PolicyRegistry policies;         // with the job's own
  std::string policy;                       // the job's, or what a search chose
  std::optional<planner::Machine> machine;  // where it is to run
  // How the strategy was found, where the job left it open and its graph has no mesh.
  std::optional<planner::SearchResult> search;
  std::string note;   // how the strategy was chosen, where the job left it open
  std::string notes;  // "note: ...", a line for each thing to know before the run
  int64_t num_parameters = 0;
};

// The job's model with its defaults filled in. Errors point at the job's key.
absl::StatusOr<JobModel> ResolveModel(const Registries& registries, const Job& job);

absl::StatusOr<JobGraph> BuildJobGraph(const Registries& registries, const Job& job);

// A graph of a model without its update, to be run on trained parameters, laid out by a strategy
// whose dp divides the batch.
absl::StatusOr<graph::Graph> BuildForwardGraph(const Registries& registries, const JobModel& model,
                                               graph::ModelUse use, int64_t batch,
                                               const planner::Strategy& strategy);

struct CompileSettings {
  std::string policy;
  planner::PolicyRegistry policies;
  std::string strategy = {};
  DeviceList devices = {};                            // their kinds
  int64_t num_threads = 1;                            // of each device, a CPU
  int chunks_per_group = 1;                           // see planner::CompileOptions
  std::optional<planner::Placement> placement = {};   // likewise
  std::vector<int> device_groups = {};                // likewise
  bool split_weight_gradients = false;                // likewise
  std::vector<uint32_t> host_devices = {};            // likewise
  std::vector<planner::ProgramSetting> program = {};  // recorded in the plan
  std::optional<planner::Machine> machine = {};       // for which the step is predicted
  DType precision = DType::kF32;                      // see planner::CompileOptions
  planner::StepEstimate* estimate = nullptr;          // filled in, if the machine is given
  planner::PassOptions passes = {};                   // looks in
};

CompileSettings SettingsOf(const Job& job, const JobGraph& graph);

absl::StatusOr<planner::FoldedPlan> CompileFoldedGraph(const Registries& registries,
                                                       graph::Graph graph,
                                                       const CompileSettings& settings);

// With the program of every device spelled out.
absl::StatusOr<planner::Plan> CompileGraph(const Registries& registries, graph::Graph graph,
                                           const CompileSettings& settings);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_GRAPH_H_
