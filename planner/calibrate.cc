#include "planner/calibrate.h"

#include <nlopt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/compile.h"
#include "planner/search/estimate.h"
#include "planner/search/folded_work.h"
#include "planner/search/join_stages.h"
#include "planner/search/machine.h"
#include "planner/search/stage_work.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {
namespace {

constexpr int64_t kMaxNumber = 1'000'000'000;
constexpr double kPeakFlopsPerS = 312e12;  // only products of it and an efficiency are fitted
constexpr double kSquareWeight = 1;
// Of the squared logarithm of a figure over its first value: what the steps say little about stays
// near that of a usual device.
constexpr double kPriorWeight = 0.01;
constexpr double kFirstStep = 0.5;  // of logarithms
constexpr double kLastStep = 1e-3;
constexpr int kEfficiencyPoints = 24;

// What is fitted.
enum Figure : size_t {
  kEfficiency,
  kHalfFlops,
  kMemoryBytesPerS,
  kAttentionSlowdown,  // times what the peak rates allow; 7 where scores pass through the memory
  kLaunchS,
  kNodeBytesPerS,
  kPodBytesPerS,
  kNodeLatencyS,
  kPodLatencyS,
  kStepS,
  kNumFigures
};
using Figures = std::array<double, kNumFigures>;

constexpr Figures kFirst = {0.7, 1e10, 2.5e12, 8, 45e-6, 800e9, 20e9, 40e-6, 40e-6, 25e-3};
constexpr Figures kLeast = {0.05, 1e7, 1e10, 1, 1e-7, 1e9, 1e8, 1e-7, 1e-7, 1e-5};
constexpr Figures kMost = {1, 1e13, 1e14, 100, 1e-3, 1e13, 1e12, 5e-3, 5e-3, 10};

absl::StatusOr<Cluster> ClusterOf(const Figures& figures, int64_t devices_per_node,
                                  int64_t num_nodes) {
  ClusterSpec spec;
  spec.name = "calibrated";
  DeviceKind kind;
  kind.name = "device";
  kind.memory_bytes = kMaxMemoryBytes;  // what fits was measured
  kind.memory_bytes_per_s = figures[kMemoryBytesPerS];
  kind.peak_flops_per_s[static_cast<size_t>(DType::kF32)] = kPeakFlopsPerS;
  kind.launch_s = figures[kLaunchS];
  kind.step_s = figures[kStepS];
  for (int i = 0; i < kEfficiencyPoints; ++i) {
    const double flops = std::pow(10, 6 + 0.4 * i);
    kind.efficiency.push_back(
        {flops, std::max(figures[kEfficiency] * flops / (flops + figures[kHalfFlops]), 1e-9)});
  }
  for (const std::string_view op : {"qkv_attention", "qkv_attention_grad"}) {
    MeasuredKernel attention = {std::string(op), DType::kF32, RooflineBound::kCompute, {}};
    attention.slowdown = {{1, figures[kAttentionSlowdown]}};
    kind.kernels.push_back(std::move(attention));
  }
  spec.kinds = {kind};
  NetworkLevel node;
  node.name = "node";
  node.fan_out = {devices_per_node};
  node.bytes_per_s = figures[kNodeBytesPerS];
  node.latency_s = figures[kNodeLatencyS];
  NetworkLevel pod;
  pod.name = "pod";
  pod.fan_out = {num_nodes};
  pod.bytes_per_s = figures[kPodBytesPerS];
  pod.latency_s = std::max(figures[kPodLatencyS], figures[kNodeLatencyS]);
  pod.uplinks = kUplinkPerDevice;
  spec.levels = {node};
  if (num_nodes > 1) spec.levels.push_back(pod);
  return Cluster::Create(std::move(spec));
}

class StepModel {
 public:
  static absl::StatusOr<StepModel> Create(const MeasuredStep& step,
                                          const CalibrationOptions& options) {
    absl::StatusOr<StepModel> model = Build(step, options);
    if (model.ok()) return model;
    return absl::Status(model.status().code(),
                        StrCat("line ", step.line, ": ", ToStd(model.status().message())));
  }

  absl::StatusOr<double> Predict(const Cluster& cluster) const {
    const Machine machine = {.cluster = cluster, .methods = kNcclMethods};
    WorkOptions work_options;
    work_options.num_groups = static_cast<int>(pp_);
    work_options.group = 0;
    ASSIGN_OR_RETURN(const ModelWork short_work, MeasureWork(graph_, machine, work_options));
    ModelWork work = Join(model_.Unfold(short_work), starts_);
    // Optimisers that update all parameters in few launches are usual.
    for (StageWork& stage : work.stages) stage.update.launch_s = 0;
    EstimateOptions options;
    options.policy = policies_.Find("1f1b");
    // As Megatron-LM reduced them: all together, when the backward pass has ended.
    options.overlaps_gradients = false;
    options.bucket_bytes = 0;
    ASSIGN_OR_RETURN(const StepEstimate estimate, EstimateStep(work, machine, options));
    return estimate.step_s;
  }

 private:
  static absl::StatusOr<StepModel> Build(const MeasuredStep& step,
                                         const CalibrationOptions& options) {
    Strategy strategy;
    strategy.dp = step.dp;
    strategy.tp = step.tp;
    strategy.pp = step.pp;
    strategy.recompute = Recompute::kFull;
    if (strategy.num_devices() != step.num_devices) {
      return absl::InvalidArgumentError(StrCat("tp * dp * pp is ", strategy.num_devices(),
                                               ", expected the ", step.num_devices, " of gpus"));
    }
    if (step.global_batch % (step.dp * step.micro_batch) != 0) {
      return absl::InvalidArgumentError(
          StrCat("dp * micro_batch is ", step.dp * step.micro_batch,
                 ", which does not divide global_batch = ", step.global_batch));
    }
    const int64_t microbatches = step.global_batch / (step.dp * step.micro_batch);
    const graph::Model* model = options.models->FindModel("gpt");
    if (model == nullptr) return absl::NotFoundError("there is no model 'gpt'");
    graph::ModelConfig config = model->defaults;
    config.layers = step.layers;
    config.width = step.width;
    config.heads = step.heads;
    config.context = step.context;
    config.vocabulary = options.vocabulary;
    ASSIGN_OR_RETURN(graph::Graph forward,
                     graph::BuildModelGraph(*options.ops, *model, config, graph::ModelUse::kTrain,
                                            step.global_batch));
    ASSIGN_OR_RETURN(FoldedModel folded,
                     FoldedModel::Create(*options.ops, forward, model->tensor_splits, {},
                                         /*keeps_layers=*/true));
    StepModel result(std::move(folded));
    result.pp_ = step.pp;
    RETURN_IF_ERROR(result.PlaceLayers(step.layers));
    strategy.pp = 1;
    result.graph_ = result.model_.graph();
    RETURN_IF_ERROR(ApplyStrategy(strategy, microbatches, model->tensor_splits, result.graph_));
    for (const Pass& pass : EstimatePasses(*options.ops)) {
      RETURN_IF_ERROR(pass.run(result.graph_));
    }
    return result;
  }

  explicit StepModel(FoldedModel model) : model_(std::move(model)) {}

  // Equally many layers to each stage, what comes before them to the first, the rest to the last.
  absl::Status PlaceLayers(int64_t num_layers) {
    starts_ = {0};
    if (pp_ == 1) return absl::OkStatus();
    if (pp_ > num_layers) {
      return absl::InvalidArgumentError(
          StrCat("pp is ", pp_, ", expected at most the ", num_layers, " of layers"));
    }
    // The first segment comes before the layers, the last one after them.
    if (model_.num_segments() != num_layers + 2) {
      return absl::InvalidArgumentError(
          StrCat("layers is ", num_layers, ", which is too few to find those that repeat"));
    }
    for (int64_t stage = 1; stage < pp_; ++stage) {
      starts_.push_back(static_cast<int>(1 + stage * num_layers / pp_));
    }
    return absl::OkStatus();
  }

  FoldedModel model_;
  graph::Graph graph_;       // of the short model, its segments being its stages
  std::vector<int> starts_;  // segments of the whole model
  int64_t pp_ = 1;
  PolicyRegistry policies_ = BuiltinPolicies();
};

absl::StatusOr<std::vector<StepModel>> CreateModels(absl::Span<const MeasuredStep> steps,
                                                    const CalibrationOptions& options) {
  std::vector<StepModel> models;
  for (const MeasuredStep& step : steps) {
    ASSIGN_OR_RETURN(StepModel model, StepModel::Create(step, options));
    models.push_back(std::move(model));
  }
  return models;
}

// Two at a time.
absl::StatusOr<std::vector<double>> Predict(const std::vector<StepModel>& models,
                                            const Cluster& cluster) {
  std::vector<double> seconds(models.size(), 0);
  std::array<absl::Status, 2> statuses;
  const auto predict = [&](size_t first) {
    for (size_t i = first; i < models.size(); i += 2) {
      const absl::StatusOr<double> predicted = models[i].Predict(cluster);
      if (predicted.ok()) {
        seconds[i] = *predicted;
      } else {
        statuses[first] = predicted.status();
      }
    }
  };
  std::thread other(predict, 1);
  predict(0);
  other.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return seconds;
}

class Fit {
 public:
  Fit(absl::Span<const MeasuredStep> steps, const std::vector<StepModel>& models,
      const CalibrationOptions& options)
      : steps_(steps), models_(models), options_(options) {
    int64_t num_devices = options.least_devices;
    for (const MeasuredStep& step : steps) num_devices = std::max(num_devices, step.num_devices);
    num_nodes_ = (num_devices + options.devices_per_node - 1) / options.devices_per_node;
  }

  absl::StatusOr<Figures> Run() {
    const std::unique_ptr<nlopt_opt_s, decltype(&nlopt_destroy)> optimizer(
        nlopt_create(NLOPT_LN_SBPLX, kNumFigures), nlopt_destroy);
    if (optimizer == nullptr) return absl::ResourceExhaustedError("no memory for the optimiser");
    optimizer_ = optimizer.get();
    Figures logarithms = Logarithms(kFirst);
    nlopt_set_min_objective(optimizer_, &Fit::Objective, this);
    nlopt_set_lower_bounds(optimizer_, Logarithms(kLeast).data());
    nlopt_set_upper_bounds(optimizer_, Logarithms(kMost).data());
    nlopt_set_initial_step1(optimizer_, kFirstStep);
    nlopt_set_xtol_abs1(optimizer_, kLastStep);
    nlopt_set_maxeval(optimizer_, options_.max_trials);
    double cost = 0;
    const nlopt_result result = nlopt_optimize(optimizer_, logarithms.data(), &cost);
    RETURN_IF_ERROR(failure_);
    // Rounding ends a search that has come as far as it can.
    if (result < 0 && result != NLOPT_ROUNDOFF_LIMITED) {
      return absl::InternalError(StrCat("the fit failed: ", nlopt_result_to_string(result)));
    }
    return Exponentials(logarithms.data());
  }

  absl::StatusOr<Cluster> ClusterWith(const Figures& figures) const {
    return ClusterOf(figures, options_.devices_per_node, num_nodes_);
  }

 private:
  static Figures Logarithms(Figures figures) {
    for (double& figure : figures) figure = std::log(figure);
    return figures;
  }
  static Figures Exponentials(const double* logarithms) {
    Figures figures;
    for (size_t f = 0; f < kNumFigures; ++f) figures[f] = std::exp(logarithms[f]);
    return figures;
  }

  static double Objective(unsigned, const double* logarithms, double*, void* fit) {
    return static_cast<Fit*>(fit)->CostOf(logarithms);
  }

  absl::StatusOr<std::vector<double>> PredictWith(const Figures& figures) const {
    ASSIGN_OR_RETURN(const Cluster cluster, ClusterWith(figures));
    return Predict(models_, cluster);
  }

  double CostOf(const double* logarithms) {
    const absl::StatusOr<std::vector<double>> predicted = PredictWith(Exponentials(logarithms));
    if (!predicted.ok()) {
      failure_ = predicted.status();
      nlopt_force_stop(optimizer_);
      return HUGE_VAL;
    }
    double cost = 0;
    double mean_error = 0;
    const auto num_steps = static_cast<double>(steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i) {
      const double error = std::abs((*predicted)[i] / steps_[i].seconds - 1);
      mean_error += error / num_steps;
      cost += (error + kSquareWeight * error * error) / num_steps;
    }
    for (size_t f = 0; f < kNumFigures; ++f) {
      const double distance = logarithms[f] - std::log(kFirst[f]);
      cost += kPriorWeight * distance * distance;
    }
    ++num_trials_;
    if (cost < least_cost_) {
      least_cost_ = cost;
      mean_error_ = mean_error;
    }
    if (options_.on_trial) options_.on_trial(num_trials_, mean_error_);
    return cost;
  }

  const absl::Span<const MeasuredStep> steps_;
  const std::vector<StepModel>& models_;
  const CalibrationOptions& options_;
  int64_t num_nodes_ = 1;
  nlopt_opt optimizer_ = nullptr;
  absl::Status failure_;
  int num_trials_ = 0;
  double least_cost_ = HUGE_VAL;
  double mean_error_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<double>> PredictSteps(absl::Span<const MeasuredStep> steps,
                                                 const Cluster& cluster,
                                                 const CalibrationOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<StepModel> models, CreateModels(steps, options));
  return Predict(models, cluster);
}

absl::StatusOr<Calibration> Calibrate(absl::Span<const MeasuredStep> steps,
                                      const CalibrationOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<StepModel> models, CreateModels(steps, options));
  Fit fit(steps, models, options);
  ASSIGN_OR_RETURN(const Figures best, fit.Run());
  ASSIGN_OR_RETURN(Cluster cluster, fit.ClusterWith(best));
  ASSIGN_OR_RETURN(std::vector<double> predicted, Predict(models, cluster));
  Calibration calibration = {std::move(cluster), std::move(predicted)};
  for (size_t i = 0; i < steps.size(); ++i) {
    const double error = std::abs(calibration.predicted_s[i] / steps[i].seconds - 1);
    calibration.mean_error += error / static_cast<double>(steps.size());
    calibration.max_error = std::max(calibration.max_error, error);
  }
  return calibration;
}

absl::StatusOr<std::vector<MeasuredStep>> ParseMeasuredSteps(std::string_view text,
                                                             std::string_view file) {
  const std::map<std::string_view, int64_t MeasuredStep::*> columns = {
      {"gpus", &MeasuredStep::num_devices},
      {"global_batch", &MeasuredStep::global_batch},
      {"micro_batch", &MeasuredStep::micro_batch},
      {"hidden", &MeasuredStep::width},
      {"heads", &MeasuredStep::heads},
      {"layers", &MeasuredStep::layers},
      {"seq", &MeasuredStep::context},
      {"tp", &MeasuredStep::tp},
      {"dp", &MeasuredStep::dp},
      {"pp", &MeasuredStep::pp}};
  constexpr std::string_view kTime = "iteration_ms";
  std::vector<std::string_view> header;
  std::vector<MeasuredStep> steps;
  int line_number = 0;
  while (!text.empty()) {
    ++line_number;
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    std::vector<std::pair<std::string_view, size_t>> cells;  // with columns in the line
    for (size_t at = 0; at <= line.size();) {
      const size_t end = std::min(line.find(',', at), line.size());
      cells.push_back({line.substr(at, end - at), at + 1});
      at = end + 1;
    }
    const auto error = [&](size_t column, std::string_view what) {
      return absl::InvalidArgumentError(StrCat(file, ":", line_number, ":", column, ": ", what));
    };
    if (header.empty()) {
      for (const auto& [cell, column] : cells) header.push_back(cell);
      std::vector<std::string_view> needed = {kTime};
      for (const auto& [name, field] : columns) needed.push_back(name);
      for (const std::string_view name : needed) {
        if (std::find(header.begin(), header.end(), name) != header.end()) continue;
        return error(1, StrCat("there is no column '", name, "'"));
      }
      continue;
    }
    if (cells.size() != header.size()) {
      return error(1, StrCat(cells.size(), " values, expected ", header.size()));
    }
    MeasuredStep& step = steps.emplace_back();
    step.line = line_number;
    for (size_t i = 0; i < cells.size(); ++i) {
      const auto& [cell, column] = cells[i];
      const auto found = columns.find(header[i]);
      if (found == columns.end() && header[i] != kTime) continue;
      double number = 0;
      const auto [end, code] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
      const bool is_whole = found == columns.end() || number == std::floor(number);
      if (code != std::errc() || end != cell.data() + cell.size() || !(number > 0) ||
          number > kMaxNumber || !is_whole) {
        return error(column, StrCat("'", cell, "': expected ",
                                    found == columns.end() ? "milliseconds" : "an integer",
                                    " above 0 for ", header[i]));
      }
      if (found == columns.end()) {
        step.seconds = number * 1e-3;
      } else {
        step.*found->second = static_cast<int64_t>(number);
      }
    }
  }
  if (steps.empty()) {
    return absl::InvalidArgumentError(StrCat(file,
                                             ":1:1: no rows; expected a line of names, such "
                                             "as gpus and iteration_ms, and one for each step"));
  }
  return steps;
}

}  // namespace penstock::planner
