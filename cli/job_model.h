// The model that a job names, and its graphs before a strategy lays them out.
//
// Thread rule: pure functions but for the files that a job names.

#ifndef PENSTOCK_CLI_JOB_MODEL_H_
#define PENSTOCK_CLI_JOB_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/environment.h"
#include "cli/job.h"

#include "base/dtype.h"
#include "graph/graph.h"
#include "graph/models/model.h"
#include "planner/compile.h"
#include "planner/strategy/strategy.h"

namespace penstock::cli {

// A model by name with all its sizes.
struct JobModel {
  const graph::Model* model = nullptr;  // null: the job names a file
  graph::ModelConfig config;
  DType precision = DType::kF32;  // see planner::CompileOptions
  bool sums_in_f32 = false;       // likewise
  bool residuals_in_f32 = false;  // likewise
};

// The job's model with its defaults filled in. Errors point at the job's key.
absl::StatusOr<JobModel> ResolveModel(const Registries& registries, const Job& job);

// The graph to train, without its update: the model's, or that of the job's file.
absl::StatusOr<graph::Graph> ForwardGraph(const Registries& registries, const Job& job,
                                          const JobModel& model);

// The keys that the training step depends on, defaults too, with their values. The momentum of SGD,
// for example, is omitted where the optimizer is AdamW.
std::vector<planner::ProgramSetting> ProgramSettings(const Job& job, const JobModel& model,
                                                     const graph::Graph& forward);

// A graph of a model without its update, to be run on trained parameters, laid out by a strategy
// whose dp divides the batch.
absl::StatusOr<graph::Graph> BuildForwardGraph(const Registries& registries, const JobModel& model,
                                               graph::ModelUse use, int64_t batch,
                                               const planner::Strategy& strategy);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_MODEL_H_
