// From the graph of a job to its plan.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_COMPILE_JOB_H_
#define PENSTOCK_CLI_COMPILE_JOB_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/device_list.h"
#include "cli/environment.h"
#include "cli/job.h"
#include "cli/job_graph.h"

#include "base/dtype.h"
#include "graph/graph.h"
#include "planner/compile.h"
#include "planner/plan/plan.h"
#include "planner/search/estimate.h"
#include "planner/search/machine.h"

namespace penstock::cli {

struct CompileSettings {
  std::string policy;
  planner::PolicyRegistry policies;
  std::string strategy = {};
  DeviceList devices = {};                            // their kinds
  int64_t num_threads = 1;                            // of each device, a CPU
  int chunks_per_group = 1;                           // see planner::CompileOptions
  std::optional<planner::Placement> placement = {};   // likewise
  bool optimizer_on_host = false;                     // likewise
  std::vector<int> device_groups = {};                // likewise
  bool split_weight_gradients = false;                // likewise
  std::optional<bool> fuse_epilogues = {};            // unset: on stages with a GPU
  std::vector<uint32_t> host_devices = {};            // likewise
  std::vector<planner::ProgramSetting> program = {};  // recorded in the plan
  std::optional<planner::Machine> machine = {};       // for which the step is predicted
  DType precision = DType::kF32;                      // see planner::CompileOptions
  bool sums_in_f32 = false;                           // likewise
  bool residuals_in_f32 = false;                      // likewise
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

#endif  // PENSTOCK_CLI_COMPILE_JOB_H_
