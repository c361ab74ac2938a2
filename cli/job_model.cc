#include "cli/job_model.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files.h"
#include "cli/model_folder.h"
#include "fmt/format.h"

#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "graph/training.h"
#include "graph/verify.h"
#include "planner/sharding/select_mesh.h"
#include "planner/strategy/stages.h"

namespace penstock::cli {
namespace {

// The forward graph of the job's file; shardings in it are kept. What is wrong in the file is
// placed there, what is wrong with the file at the job's key.
absl::StatusOr<graph::Graph> ReadForwardGraph(const Registries& registries, const Job& job) {
  const std::string& path = job.model.file;
  const absl::StatusOr<std::string> text = ReadTextFile(path, graph::kMaxTextBytes);
  if (!text.ok()) return AtKey(job, {"model.file"}, text.status());
  ASSIGN_OR_RETURN(graph::Graph graph, graph::ParseGraph(*text, path, registries.ops));
  RETURN_IF_ERROR(graph::VerifyGraph(graph));
  RETURN_IF_ERROR(planner::SelectMesh(graph));
  for (const graph::Node& node : graph.nodes()) {
    if (node.stage > 0 && graph.meshes().empty()) {
      return absl::InvalidArgumentError(
          StrCat(path, ":", node.location.line, ":", node.location.column,
                 ": a graph to train without a mesh assigns no stages; add a mesh, or let the "
                 "job's strategy assign them (pp)"));
    }
  }
  return graph;
}

}  // namespace

absl::StatusOr<JobModel> ResolveModel(const Registries& registries, const Job& job) {
  JobModel resolved;
  // Mixed precision is made of the model in f32.
  const bool is_mixed = IsHalf(job.train.dtype);
  const DType dtype = is_mixed ? DType::kF32 : job.train.dtype;
  if (is_mixed) resolved.precision = job.train.dtype;
  for (const auto& [key, given] : {std::pair("train.sum_dtype", job.train.sum_dtype),
                                   std::pair("train.residual_dtype", job.train.residual_dtype)}) {
    const DType wanted = given.value_or(DType::kF32);
    if (wanted != job.train.dtype && wanted != DType::kF32) {
      return AtKey(job, {key},
                   absl::InvalidArgumentError(StrCat(key, " = ", Name(wanted),
                                                     ": must be f32, or train.dtype, which is ",
                                                     Name(job.train.dtype))));
    }
  }
  resolved.sums_in_f32 = job.train.sum_dtype == DType::kF32;
  resolved.residuals_in_f32 = job.train.residual_dtype == DType::kF32;
  resolved.config.dtype = dtype;
  if (!job.model.file.empty()) return resolved;
  if (!job.model.weights.empty()) {
    const absl::StatusOr<FolderConfig> folder = ReadFolderConfig(job.model.weights);
    if (!folder.ok()) return AtKey(job, {"model.weights"}, folder.status());
    if (job.locations.contains("model.name") && job.model.name != folder->model) {
      return AtKey(job, {"model.name"},
                   absl::InvalidArgumentError(StrCat("model.name = ", job.model.name, ": ",
                                                     job.model.weights, " holds a ", folder->model,
                                                     "; leave it out")));
    }
    resolved.model = registries.models.FindModel(folder->model);
    resolved.config = folder->config;
  } else if (const graph::Preset* preset = registries.models.FindPreset(job.model.name)) {
    resolved.model = registries.models.FindModel(preset->model);
    resolved.config = preset->config;
  } else if (const graph::Model* model = registries.models.FindModel(job.model.name)) {
    resolved.model = model;
    resolved.config = model->defaults;
  } else {
    std::vector<std::string_view> known = registries.models.ModelNames();
    const std::vector<std::string_view> presets = registries.models.PresetNames();
    known.insert(known.end(), presets.begin(), presets.end());
    std::string message = StrCat("unknown model '", job.model.name, "'");
    const std::string nearest = graph::NearestName(job.model.name, known);
    if (nearest.empty()) {
      StrAppend(&message, "; known: ", penstock::StrJoin(known, ", "));
    } else {
      StrAppend(&message, "; did you mean '", nearest, "'?");
    }
    return AtKey(job, {"model.name"}, absl::InvalidArgumentError(message));
  }
  graph::ModelConfig& config = resolved.config;
  config.dtype = dtype;
  config.layers = job.model.layers.value_or(config.layers);
  config.width = job.model.width.value_or(config.width);
  config.heads = job.model.heads.value_or(config.heads);
  config.context = job.model.context.value_or(config.context);
  config.vocabulary = job.model.vocabulary.value_or(config.vocabulary);
  config.dropout = job.model.dropout.value_or(config.dropout);
  config.experts = job.model.experts.value_or(config.experts);
  config.top_k = job.model.top_k.value_or(config.top_k);
  config.capacity_factor = job.model.capacity_factor.value_or(config.capacity_factor);
  config.balance = job.model.balance.value_or(config.balance);
  config.expert_every = job.model.expert_every.value_or(config.expert_every);
  config.kv_heads = job.model.kv_heads.value_or(config.kv_heads);
  config.hidden = job.model.hidden.value_or(config.hidden);
  config.rotary_base = job.model.rotary_base.value_or(config.rotary_base);
  graph::RotaryScaling& scaling = config.rotary_scaling;
  scaling.type = job.model.rotary_scaling.value_or(scaling.type);
  scaling.factor = job.model.rotary_factor.value_or(scaling.factor);
  scaling.low_factor = job.model.rotary_low_factor.value_or(scaling.low_factor);
  scaling.high_factor = job.model.rotary_high_factor.value_or(scaling.high_factor);
  scaling.context = job.model.rotary_context.value_or(scaling.context);
  config.norm_epsilon = job.model.norm_epsilon.value_or(config.norm_epsilon);
  config.is_tied = job.model.tied.value_or(config.is_tied);
  config.image = job.model.image.value_or(config.image);
  config.channels = job.model.channels.value_or(config.channels);
  config.classes = job.model.classes.value_or(config.classes);
  const absl::Status status = resolved.model->check(config);
  // The message begins with the name of a key.
  const std::string_view message = ToStd(status.message());
  const std::string key = StrCat("model.", message.substr(0, message.find(' ')));
  RETURN_IF_ERROR(AtKey(job, {key, "model.heads", "model.width", "model.name"}, status));
  return resolved;
}

absl::StatusOr<graph::Graph> ForwardGraph(const Registries& registries, const Job& job,
                                          const JobModel& model) {
  if (model.model == nullptr) return ReadForwardGraph(registries, job);
  absl::StatusOr<graph::Graph> graph = graph::BuildModelGraph(
      registries.ops, *model.model, model.config, graph::ModelUse::kTrain, job.train.batch);
  if (!graph.ok()) return AtKey(job, {"model.name"}, graph.status());
  return graph;
}

std::vector<planner::ProgramSetting> ProgramSettings(const Job& job, const JobModel& model,
                                                     const graph::Graph& forward) {
  std::vector<planner::ProgramSetting> settings;
  const auto add = [&settings](std::string_view key, const auto& value) {
    settings.push_back({std::string(key), fmt::format("{}", value)});
  };
  if (model.model == nullptr) {
    add("model.file",
        fmt::format("graph {} {:016x}", forward.name(), planner::Fingerprint(forward)));
    if (IsHalf(model.precision)) add("train.dtype", Name(model.precision));
  } else {
    const std::vector<std::string_view>& known = model.model->sizes;
    const auto add_size = [&](std::string_view size, const auto& value) {
      const bool is_read =
          known.empty() || std::find(known.begin(), known.end(), size) != known.end();
      if (is_read) add(StrCat("model.", size), value);
    };
    add("model.name", model.model->name);
    add_size("layers", model.config.layers);
    add_size("width", model.config.width);
    add_size("heads", model.config.heads);
    add_size("context", model.config.context);
    add_size("vocabulary", model.config.vocabulary);
    add_size("dropout", model.config.dropout);
    add_size("experts", model.config.experts);
    add_size("top_k", model.config.top_k);
    add_size("capacity_factor", model.config.capacity_factor);
    add_size("balance", model.config.balance);
    add_size("expert_every", model.config.expert_every);
    add_size("kv_heads", model.config.kv_heads);
    add_size("hidden", model.config.hidden);
    add_size("rotary_base", model.config.rotary_base);
    if (const graph::RotaryScaling& scaling = model.config.rotary_scaling; scaling.type != "none") {
      add("model.rotary_scaling", scaling.type);
      add("model.rotary_factor", scaling.factor);
      add("model.rotary_low_factor", scaling.low_factor);
      add("model.rotary_high_factor", scaling.high_factor);
      add("model.rotary_context", scaling.context);
    }
    add_size("norm_epsilon", model.config.norm_epsilon);
    add_size("tied", model.config.is_tied);
    if (model.model->reads_images) {
      add_size("image", model.config.image);
      add_size("channels", model.config.channels);
      add_size("classes", model.config.classes);
    }
    add("train.batch", job.train.batch);
    add("train.dtype", Name(job.train.dtype));
  }
  const graph::TrainingOptions options = TrainingOptionsOf(job);
  if (options.optimizer == graph::Optimizer::kAdamW) {
    add("train.optimizer", "adamw");
    add("train.beta1", options.beta1);
    add("train.beta2", options.beta2);
    add("train.epsilon", options.epsilon);
  } else {
    add("train.optimizer", "sgd");
    add("train.momentum", options.momentum);
  }
  add("train.weight_decay", options.weight_decay);
  add("train.clip_norm", options.clip_norm);
  if (options.loss_scale > 0) add("train.loss_scale", options.loss_scale);
  if (options.gradient_dtype != DType::kF32) {
    add("train.gradient_dtype", Name(options.gradient_dtype));
  }
  if (IsHalf(model.precision) && model.sums_in_f32) add("train.sum_dtype", "f32");
  if (IsHalf(model.precision) && model.residuals_in_f32) add("train.residual_dtype", "f32");
  add("train.learning_rate", options.learning_rate);
  add("train.warmup_steps", options.warmup_steps);
  if (options.schedule == graph::LearningRateSchedule::kCosine) {
    add("train.schedule", "cosine");
    add("train.min_learning_rate", options.min_learning_rate);
    add("train.steps", options.total_steps);
  } else {
    add("train.schedule", "constant");
  }
  return settings;
}

absl::StatusOr<graph::Graph> BuildForwardGraph(const Registries& registries, const JobModel& model,
                                               graph::ModelUse use, int64_t batch,
                                               const planner::Strategy& strategy) {
  ASSIGN_OR_RETURN(graph::Graph graph,
                   graph::BuildModelGraph(registries.ops, *model.model, model.config, use, batch));
  // Not worth a search: what the model names.
  planner::Strategy used = strategy;
  used.splits_by_cost = false;
  // These serve the backward pass and the optimizer, and a batch need not divide into sub-batches.
  used.sub_batches = 1;
  used.recompute = planner::Recompute::kNone;
  used.offload = planner::Offload::kNone;
  RETURN_IF_ERROR(planner::ApplyStrategy(used, 1, model.model->tensor_splits, graph));
  RETURN_IF_ERROR(planner::AssignStages(strategy.num_stages(), graph));
  return graph;
}

}  // namespace penstock::cli
