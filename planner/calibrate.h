// A cluster from measured training steps: the rates at which a model of it predicts them best.
//
// Each row is a step of a GPT under a strategy, with equally many layers a stage. Its graph is
// lowered once; what changes from one set of rates to the next is only the time of its work
// (search/stage_work.h, search/estimate.h).
// The fitted figures are
//   - the part of the peak that large products reach, and the flops of a product that reaches half
//     of that
//   - the rate of a device's memory, how far attention is from the peak rates, and what the host
//     takes to launch a kernel and between two steps
//   - rate and latency within a node and between nodes
// found on their logarithms by the subplex method (Rowan, "Functional stability analysis of
// numerical algorithms", 1990; in the library NLopt), which minimises the mean of |predicted /
// measured - 1| and its square. What the steps say little about stays near its first value, that
// of a recent GPU.
//
// The steps are taken to be those of Megatron-LM: it reduces all gradients together after the
// backward pass and updates all parameters in a few launches, which do not count.
//
// Steps are planned in f32, for which plans exist, whatever the rows were measured in. The fitted
// rates hold for f32 jobs that stand for such runs.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_CALIBRATE_H_
#define PENSTOCK_PLANNER_CALIBRATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/models/model.h"
#include "graph/op.h"
#include "planner/cluster/cluster_model.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// A training step of a GPT with full recomputation under 1F1B.
struct MeasuredStep {
  int64_t num_devices = 1;   // tp * dp * pp
  int64_t global_batch = 1;  // sequences of the step; dp * micro_batch divides it
  int64_t micro_batch = 1;   // sequences of a micro-batch, of one data-parallel part
  int64_t width = 1;         // of the hidden state of a token
  int64_t heads = 1;         // of attention
  int64_t layers = 1;        // of the transformer
  int64_t context = 1;       // tokens of a sequence
  int64_t tp = 1;            // tensor parallel
  int64_t dp = 1;            // data parallel
  int64_t pp = 1;            // pipeline stages
  double seconds = 0;        // as measured; PredictSteps does not read it
  int line = 0;              // of its file
};

// Of a CSV file with the columns gpus, global_batch, micro_batch, hidden, heads, layers, seq, tp,
// dp, pp and iteration_ms, in any order; other columns are ignored. Errors name file, line and
// column.
absl::StatusOr<std::vector<MeasuredStep>> ParseMeasuredSteps(std::string_view text,
                                                             std::string_view file);

// The cluster that was fitted, and how well it predicts the steps that it was fitted to.
struct Calibration {
  // Whole nodes of one kind of device. Memory limits nothing there: what was measured did fit.
  Cluster cluster;
  std::vector<double> predicted_s;  // of each step
  double mean_error = 0;            // of |predicted / measured - 1|
  double max_error = 0;             // the largest of these
};

// What the steps and their cluster have in common, and how long to fit. PredictSteps reads the
// registries and the vocabulary alone.
struct CalibrationOptions {
  const graph::OpRegistry* ops = nullptr;        // that the model is made of; not null
  const graph::ModelRegistry* models = nullptr;  // with the model "gpt"; not null
  int64_t devices_per_node = 8;                  // of the cluster; at least 1
  int64_t least_devices = 1;   // of the cluster, which has those of the largest step
  int64_t vocabulary = 51200;  // of the GPT of each step, in tokens
  int max_trials = 1500;       // sets of rates that are tried at most; 0: no limit
  // Told after each set of rates that was tried: how many were, and the mean error of the best.
  std::function<void(int num_trials, double mean_error)> on_trial;
};

// Errors name the line of a step that cannot be planned. REQUIRES: there are steps.
absl::StatusOr<Calibration> Calibrate(absl::Span<const MeasuredStep> steps,
                                      const CalibrationOptions& options);

// What the cluster predicts of other steps, in seconds.
absl::StatusOr<std::vector<double>> PredictSteps(absl::Span<const MeasuredStep> steps,
                                                 const Cluster& cluster,
                                                 const CalibrationOptions& options);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CALIBRATE_H_
