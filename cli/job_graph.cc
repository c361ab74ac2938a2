#include "cli/job_graph.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cli/device_kinds.h"
#include "cli/files.h"
#include "cli/host_layout.h"
#include "cli/job_machine.h"
#include "cli/job_policy.h"
#include "cli/model_folder.h"
#include "fmt/format.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "graph/training.h"
#include "graph/verify.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/schedules.h"
#include "planner/search/split_by_cost.h"
#include "planner/sharding/select_mesh.h"
#include "planner/strategy/directions.h"
#include "planner/strategy/repeated_layers.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/stated_shardings.h"
#include "planner/strategy/strategy.h"
#include "planner/strategy/zero.h"

namespace penstock::cli {
namespace {

using planner::Strategy;

// The forward graph of the job's file; shardings in it are kept. What is wrong in the file is
// placed there, what is wrong with the file at the job's key.
absl::StatusOr<graph::Graph> ReadForwardGraph(const Registries& registries, const Job& job) {
  const std::string& path = job.model.file;
  const absl::StatusOr<std::string> text = ReadTextFile(path, graph::kMaxTextBytes);
  if (!text.ok()) return AtKey(job, {"model.file"}, text.status());
  ASSIGN_OR_RETURN(graph::Graph graph, graph::ParseGraph(*text, path, registries.ops));
  RETURN_IF_ERROR(graph::VerifyGraph(graph));
  RETURN_IF_ERROR(planner::SelectMesh(graph));
  // Where stages have different numbers of devices, the file says which statements they run.
  const bool has_stages = graph.meshes().size() > 1;
  for (const graph::Node& node : graph.nodes()) {
    if (node.stage > 0 && !has_stages) {
      return absl::InvalidArgumentError(
          StrCat(path, ":", node.location.line, ":", node.location.column,
                 ": a graph to train assigns no stages; the job's strategy does (pp)"));
    }
  }
  return graph;
}

absl::StatusOr<graph::Graph> ForwardGraph(const Registries& registries, const Job& job,
                                          const JobModel& model) {
  if (model.model == nullptr) return ReadForwardGraph(registries, job);
  absl::StatusOr<graph::Graph> graph = graph::BuildModelGraph(
      registries.ops, *model.model, model.config, graph::ModelUse::kTrain, job.train.batch);
  if (!graph.ok()) return AtKey(job, {"model.name"}, graph.status());
  return graph;
}

// `remedy` says what else to set.
absl::Status CheckDevices(const Job& job, int64_t needed, std::string_view what,
                          std::string_view remedy) {
  if (!job.cluster.devices.has_value() || *job.cluster.devices == needed) return absl::OkStatus();
  const auto place = job.locations.find("cluster.devices");
  const std::string origin =
      place == job.locations.end() ? std::string("cluster.devices") : place->second;
  return AtKey(job, {"parallel.strategy", "cluster.devices"},
               absl::InvalidArgumentError(StrCat(what, " needs ", Counted(needed, "device"),
                                                 ", not ", *job.cluster.devices, " (", origin,
                                                 "); set --devices ", needed, remedy)));
}

// ", or dp=4 for 8 devices": the first axis that another size makes fit; empty where none does.
std::string AxisForDevices(const Strategy& strategy, int64_t devices) {
  for (const auto& [axis, size] :
       {std::pair("dp", strategy.dp), std::pair("tp", strategy.tp), std::pair("pp", strategy.pp)}) {
    const int64_t others = strategy.num_devices() / size;
    if (devices % others != 0) continue;
    Strategy changed = strategy;
    (axis == std::string_view("dp")   ? changed.dp
     : axis == std::string_view("tp") ? changed.tp
                                      : changed.pp) = devices / others;
    // Options may need an axis of some size.
    if (!planner::ParseStrategy(ToString(changed)).ok()) continue;
    return StrCat(", or ", axis, "=", devices / others, " to use ", devices);
  }
  return "";
}

absl::Status CheckDevicesOf(const Job& job, const Strategy& strategy) {
  const int64_t devices = job.cluster.devices.value_or(strategy.num_devices());
  return CheckDevices(
      job, strategy.num_devices(), StrCat("strategy ", planner::ToString(strategy)),
      StrCat(AxisForDevices(strategy, devices), ", or --strategy auto to let the planner choose"));
}

// Whether the axes of the mesh are those of the strategy: its stages are beside the mesh.
bool IsMeshOf(const Strategy& strategy, const graph::Mesh& mesh) {
  int64_t dp = 1;
  int64_t tp = 1;
  for (const graph::MeshAxis& axis : mesh.axes) {
    if (axis.is_temporal) continue;
    if (axis.name != "dp" && axis.name != "tp") return false;
    (axis.name == "dp" ? dp : tp) = axis.size;
  }
  return strategy.dp == dp && strategy.tp == tp && strategy.ep == 1 && strategy.cp == 1;
}

// Text for a graph file that has no mesh: one with the axes of the strategy, and statements of the
// file split over them. Nothing else in a file says which weights tp splits.
std::string ExampleOfSplit(const Strategy& strategy, int64_t microbatches, graph::Graph graph) {
  graph::Mesh mesh;
  mesh.name = "m";
  if (microbatches > 1) mesh.axes.push_back({"mb", microbatches, true});
  if (strategy.dp > 1) mesh.axes.push_back({"dp", strategy.dp, false});
  mesh.axes.push_back({"tp", strategy.tp, false});
  graph.mutable_meshes().push_back(mesh);
  std::vector<graph::AxisRef> batch_axes;
  for (const char* axis : {"mb", "dp"}) {
    if (mesh.FindAxis(axis) >= 0) batch_axes.push_back(WholeAxis(mesh, mesh.FindAxis(axis)));
  }
  const auto split = [&graph](const graph::Node& node, int dim, std::vector<graph::AxisRef> axes) {
    graph::Value& value = graph.mutable_value(node.results[0]);
    graph::Sharding sharding =
        graph::Sharding::Replicated(static_cast<int>(value.type.shape.size()));
    sharding.dims[dim].axes = std::move(axes);
    value.sharding = std::move(sharding);
    return StrCat("\n    ", graph::PrintNode(graph, node));
  };
  std::string input;
  std::string weight;
  for (const graph::Node& node : graph.nodes()) {
    if (node.results.empty()) continue;
    const Shape& shape = graph.value(node.results[0]).type.shape;
    if (node.op->role() == graph::OpRole::kInput && input.empty() && !batch_axes.empty() &&
        !shape.empty()) {
      input = split(node, 0, batch_axes);
    }
    if (node.op->role() != graph::OpRole::kParameter || !weight.empty()) continue;
    for (int dim = static_cast<int>(shape.size()) - 1; dim >= 0 && weight.empty(); --dim) {
      if (shape[dim] % strategy.tp != 0) continue;
      weight = split(node, dim, {WholeAxis(mesh, mesh.FindAxis("tp"))});
    }
  }
  std::vector<std::string> axes;
  for (const graph::MeshAxis& axis : mesh.axes) {
    axes.push_back(StrCat(axis.name, "=", axis.size, axis.is_temporal ? " temporal" : ""));
  }
  return StrCat("\n    mesh m = [", StrJoin(axes, ", "), "]", input, weight);
}

// The keys that the training step depends on. The momentum of SGD, for example, is omitted where
// the optimizer is AdamW.
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
    add("model.name", model.model->name);
    add("model.layers", model.config.layers);
    add("model.width", model.config.width);
    add("model.heads", model.config.heads);
    add("model.context", model.config.context);
    add("model.vocabulary", model.config.vocabulary);
    add("model.dropout", model.config.dropout);
    add("model.experts", model.config.experts);
    add("model.top_k", model.config.top_k);
    add("model.capacity_factor", model.config.capacity_factor);
    add("model.balance", model.config.balance);
    add("model.expert_every", model.config.expert_every);
    add("model.kv_heads", model.config.kv_heads);
    add("model.hidden", model.config.hidden);
    add("model.rotary_base", model.config.rotary_base);
    if (const graph::RotaryScaling& scaling = model.config.rotary_scaling; scaling.type != "none") {
      add("model.rotary_scaling", scaling.type);
      add("model.rotary_factor", scaling.factor);
      add("model.rotary_low_factor", scaling.low_factor);
      add("model.rotary_high_factor", scaling.high_factor);
      add("model.rotary_context", scaling.context);
    }
    add("model.norm_epsilon", model.config.norm_epsilon);
    add("model.tied", model.config.is_tied);
    if (model.model->reads_images) {
      add("model.image", model.config.image);
      add("model.channels", model.config.channels);
      add("model.classes", model.config.classes);
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

// "dp=2,tp=2": the axes that have devices.
std::string MeshText(const graph::Mesh& mesh) {
  std::string text;
  for (const graph::MeshAxis& axis : mesh.axes) {
    if (!axis.is_temporal) StrAppend(&text, text.empty() ? "" : ",", axis.name, "=", axis.size);
  }
  return text;
}

// A line for each key that the job sets although it has no effect on the graph of a file.
std::string IgnoredKeys(const Job& job, const graph::Graph& graph) {
  struct Key {
    std::string_view name;
    bool is_used;  // asks for something
    std::string_view reason;
  };
  const Key keys[] = {
      {"train.dtype", !IsHalf(job.train.dtype), "model.file states the types of its values"},
      {"train.batch", true, "model.file states the shapes of its inputs"},
      {"train.validation_every", job.train.validation_every > 0,
       "only built-in models are validated"},
      {"train.validation_sequences", job.train.validation_sequences > 0,
       "only built-in models are validated"},
      {"sample.bytes", job.sample.bytes > 0, "only built-in models generate text"},
      {"parallel.microbatches", !graph.meshes().empty() && job.parallel.microbatches > 0,
       "the mesh in model.file states the micro-batches"},
  };
  std::string notes;
  for (const Key& key : keys) {
    const auto place = job.locations.find(key.name);
    if (!key.is_used || place == job.locations.end()) continue;
    StrAppend(&notes, "note: ", key.name, " has no effect: ", key.reason, " (", place->second,
              ")\n");
  }
  return notes;
}

// Stages with one micro-batch between them wait for each other.
void AddBubbleNote(int64_t pp, JobGraph& graph) {
  if (pp == 1 || graph.microbatches > 1) return;
  graph.notes += fmt::format(
      "note: pp = {} with 1 micro-batch: one stage computes at a time, a bubble of {:.0f} %; "
      "several micro-batches overlap the stages (parallel.microbatches, which the batch has to be "
      "a multiple of)\n",
      pp, 100.0 * static_cast<double>(pp - 1) / static_cast<double>(pp));
}

// The fastest strategy for the job's machine, by the best of the schedules; of a strategy that is
// given, the best number of micro-batches.
absl::StatusOr<planner::SearchResult> SearchStrategy(const Registries& registries, const Job& job,
                                                     std::vector<const planner::Policy*> policies,
                                                     const graph::Graph& forward,
                                                     absl::Span<const graph::SplitHint> hints,
                                                     std::optional<Strategy> given) {
  planner::SearchProblem problem;
  problem.strategy = given;
  if (given.has_value()) {
    problem.num_devices = given->num_devices();
  } else {
    ASSIGN_OR_RETURN(problem.num_devices, DevicesForAuto(job));
  }
  ASSIGN_OR_RETURN(const planner::Machine machine, MachineOf(job, problem.num_devices));
  problem.ops = &registries.ops;
  problem.forward = &forward;
  problem.training = TrainingOptionsOf(job);
  problem.hints = hints;
  problem.machine = &machine;
  problem.policies = std::move(policies);
  problem.microbatches = job.parallel.microbatches;
  if (!given.has_value()) problem.chunks = job.parallel.chunks;
  // A job that gives both its strategy and the kinds of devices means which stage is on which kind.
  problem.keeps_group_order = given.has_value() && ListsDeviceKinds(job);
  problem.splits_weight_gradients = job.parallel.split_backward;
  const DType precision = IsHalf(job.train.dtype) ? job.train.dtype : DType::kF32;
  problem.lower = [&registries, precision](graph::Graph& graph) {
    for (const planner::Pass& pass : planner::EstimatePasses(registries.ops, precision)) {
      RETURN_IF_ERROR(pass.run(graph));
    }
    return absl::OkStatus();
  };
  absl::StatusOr<planner::SearchResult> result = planner::FindStrategy(problem);
  if (result.ok()) {
    // Of this machine, the run will tell what it has.
    if (!job.cluster.file.empty() && !given.has_value()) {
      RETURN_IF_ERROR(AtKey(job, {"cluster.file"}, planner::CheckFits(*result)));
    }
    return result;
  }
  // Whose fault it is: with micro-batches left open there is a strategy, or there is none.
  bool has_strategy = false;
  if (problem.microbatches > 0) {
    problem.microbatches = 0;
    has_strategy = planner::FindStrategy(problem).ok();
  }
  if (has_strategy) return AtKey(job, {"parallel.microbatches"}, result.status());
  return AtKey(job, {"cluster.devices", "cluster.file"}, result.status());
}

}  // namespace

absl::StatusOr<JobModel> ResolveModel(const Registries& registries, const Job& job) {
  JobModel resolved;
  // Mixed precision is made of the model in f32.
  const bool is_mixed = IsHalf(job.train.dtype);
  const DType dtype = is_mixed ? DType::kF32 : job.train.dtype;
  if (is_mixed) resolved.precision = job.train.dtype;
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

namespace {

// Stages that lie on meshes with different numbers of devices, as the file says.
absl::Status LayOutByStages(const Job& job, bool has_strategy, JobGraph& result) {
  if (has_strategy) {
    return AtKey(
        job, {"parallel.strategy"},
        absl::InvalidArgumentError(StrCat(job.model.file,
                                          " is laid out by the meshes of its stages; leave the "
                                          "strategy \"auto\"")));
  }
  if (!job.parallel.hints.empty()) {
    return AtKey(
        job, {"parallel.hints"},
        absl::InvalidArgumentError(StrCat(job.model.file,
                                          " is laid out by the meshes of its stages; write the "
                                          "shardings there")));
  }
  RETURN_IF_ERROR(planner::FollowStages(result.graph));
  std::vector<const graph::Mesh*> mesh_of_stage;
  for (const graph::Node& node : result.graph.nodes()) {
    const auto stage = static_cast<size_t>(node.stage);
    if (stage >= mesh_of_stage.size()) mesh_of_stage.resize(stage + 1, nullptr);
    mesh_of_stage[stage] = &result.graph.meshes()[node.mesh];
  }
  result.num_devices = 0;
  for (size_t stage = 0; stage < mesh_of_stage.size(); ++stage) {
    if (mesh_of_stage[stage] == nullptr) {
      return AtKey(job, {"model.file"},
                   absl::InvalidArgumentError(StrCat(job.model.file, " has no statement of stage ",
                                                     stage, ", but one of a later stage")));
    }
    result.num_devices += mesh_of_stage[stage]->num_devices();
    const std::string axes = MeshText(*mesh_of_stage[stage]);
    StrAppend(&result.strategy, stage == 0 ? "" : "; ", axes.empty() ? "1" : axes);
  }
  RETURN_IF_ERROR(
      CheckDevices(job, result.num_devices, StrCat("the pipeline in ", job.model.file), ""));
  RETURN_IF_ERROR(HostDevicesOf(job, result.num_devices).status());
  result.microbatches = result.graph.meshes()[0].num_microbatches();
  result.note = StrCat("laid out by the meshes of the stages of ", job.model.file);
  AddBubbleNote(static_cast<int64_t>(mesh_of_stage.size()), result);
  ASSIGN_OR_RETURN(result.machine, MachineOf(job, result.num_devices));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobGraph> BuildJobGraph(const Registries& registries, const Job& job) {
  JobGraph result;
  ASSIGN_OR_RETURN(result.policies, PoliciesOf(registries, job));
  const planner::Policy& policy = *result.policies.Find(job.parallel.schedule);
  result.policy = std::string(policy.name());
  absl::StatusOr<std::optional<Strategy>> given = planner::ParseStrategy(job.parallel.strategy);
  if (!given.ok()) return AtKey(job, {"parallel.strategy"}, given.status());
  if (given->has_value() && (*given)->pp > 1) RETURN_IF_ERROR(SetChunks(job, policy, &**given));
  if (!given->has_value() && policy.needs().placement == planner::Placement::kBidirectional) {
    return AtKey(job, {"parallel.schedule"},
                 absl::InvalidArgumentError(
                     StrCat("schedule '", result.policy,
                            "' runs each pipeline stage on two groups "
                            "of devices, which the strategy \"auto\" does not consider; give a "
                            "strategy such as pp=4")));
  }
  if (given->has_value()) RETURN_IF_ERROR(CheckDevicesOf(job, **given));

  ASSIGN_OR_RETURN(result.model, ResolveModel(registries, job));
  ASSIGN_OR_RETURN(graph::Graph forward, ForwardGraph(registries, job, result.model));
  const bool has_stated_splits =
      std::any_of(job.parallel.hints.begin(), job.parallel.hints.end(),
                  [](const graph::SplitHint& hint) { return hint.IsFor("tp"); });
  if (!job.model.file.empty() && given->has_value() && (*given)->tp > 1 &&
      !(*given)->splits_by_cost && forward.meshes().empty() && !has_stated_splits) {
    const int64_t microbatches = job.parallel.microbatches > 0
                                     ? job.parallel.microbatches
                                     : planner::ChooseMicrobatches(**given, forward);
    return AtKey(
        job, {"parallel.strategy"},
        absl::InvalidArgumentError(StrCat(
            "tp = ", (*given)->tp, ": ", job.model.file,
            " does not say which weights to split; add splits=cost, which chooses by cost, or put "
            "the axes into a mesh before its graph and a sharding on the batch and on weights, "
            "for example",
            ExampleOfSplit(**given, microbatches, forward))));
  }
  if (given->has_value() && (*given)->splits_by_cost && has_stated_splits) {
    return AtKey(job, {"parallel.hints"},
                 absl::InvalidArgumentError("splits=cost chooses what tp splits: leave it out, or "
                                            "the hints that name tp"));
  }
  result.num_parameters = graph::NumParameters(forward);
  std::vector<graph::SplitHint> hints = job.parallel.hints;
  if (result.model.model != nullptr) {
    const std::vector<graph::SplitHint>& splits = result.model.model->tensor_splits;
    hints.insert(hints.end(), splits.begin(), splits.end());
  }
  const planner::RepeatedLayers layers =
      planner::InPairs(planner::FindRepeatedLayers(forward, hints, planner::kLeastLayers));
  std::optional<graph::Graph> search_forward;
  bool is_open = !given->has_value() || job.parallel.microbatches == 0;
  if (!is_open && (*given)->pp > 1 && (!job.cluster.file.empty() || ListsDeviceKinds(job))) {
    // Where to cut depends on which devices are faster.
    ASSIGN_OR_RETURN(const planner::Machine machine, MachineOf(job, (*given)->num_devices()));
    is_open = machine.cluster.spec().kinds.size() > 1;
  }
  if (is_open && forward.meshes().empty()) search_forward = forward;
  result.settings = ProgramSettings(job, result.model, forward);
  absl::StatusOr<graph::Graph> training =
      graph::BuildTrainingGraph(registries.ops, std::move(forward), TrainingOptionsOf(job));
  if (!training.ok()) return AtKey(job, {"model.file"}, training.status());
  result.graph = *std::move(training);
  if (!job.model.file.empty()) result.notes = IgnoredKeys(job, result.graph);
  RETURN_IF_ERROR(
      AtKey(job, {"parallel.hints"}, planner::CheckStatedShardings(hints, result.graph)));

  if (result.graph.meshes().size() > 1) {
    RETURN_IF_ERROR(LayOutByStages(job, given->has_value(), result));
    return result;
  }
  if (!result.graph.meshes().empty()) {
    // A file that says how it is split is taken at its word.
    const graph::Mesh& mesh = result.graph.meshes()[0];
    if (given->has_value() && !IsMeshOf(**given, mesh)) {
      return AtKey(job, {"parallel.strategy"},
                   absl::InvalidArgumentError(
                       StrCat(job.model.file, " is laid out by its mesh ", mesh.name, " (",
                              MeshText(mesh), "), not by ", planner::ToString(**given),
                              "; change the mesh, or leave the strategy \"auto\"")));
    }
    const int zero = given->has_value() ? (*given)->zero : 0;
    if (given->has_value() && (*given)->splits_by_cost) {
      return AtKey(job, {"parallel.strategy"},
                   absl::InvalidArgumentError(StrCat("splits = cost: ", job.model.file,
                                                     " is laid out by its mesh ", mesh.name,
                                                     "; leave out either")));
    }
    if (given->has_value() && (*given)->sp) {
      return AtKey(job, {"parallel.strategy"},
                   absl::InvalidArgumentError(
                       StrCat("sp = true: ", job.model.file, " is laid out by its mesh ", mesh.name,
                              "; write tp on the values that are to be split over sequences")));
    }
    const planner::Recompute recompute =
        given->has_value() ? (*given)->recompute : planner::Recompute::kNone;
    const planner::Offload offload =
        given->has_value() ? (*given)->offload : planner::Offload::kNone;
    const int64_t pp = given->has_value() ? (*given)->pp : 1;
    const int64_t vpp = given->has_value() ? (*given)->vpp : 1;
    result.num_devices = mesh.num_devices() * pp;
    RETURN_IF_ERROR(CheckDevices(job, result.num_devices, StrCat("mesh ", mesh.name),
                                 ", or change the sizes of the mesh's axes"));
    RETURN_IF_ERROR(HostDevicesOf(job, result.num_devices).status());
    result.strategy = StrCat(
        MeshText(mesh), pp > 1 ? StrCat(",pp=", pp) : "", vpp > 1 ? StrCat(",vpp=", vpp) : "",
        zero > 0 ? StrCat(",zero=", zero) : "",
        recompute == planner::Recompute::kNone ? std::string()
                                               : StrCat(",recompute=", planner::Name(recompute)),
        offload == planner::Offload::kNone ? std::string()
                                           : StrCat(",offload=", planner::Name(offload)));
    planner::MarkRecompute(recompute, result.graph);
    RETURN_IF_ERROR(AtKey(job, {"parallel.hints"},
                          planner::ApplyStatedShardings(hints, result.graph, zero > 0)));
    planner::MarkOffload(offload, result.graph);
    result.chunks_per_group = static_cast<int>(vpp);
    result.microbatches = mesh.num_microbatches();
    result.note = StrCat("laid out by the mesh ", mesh.name, " of ", job.model.file);
    if (zero > 0) {
      RETURN_IF_ERROR(
          AtKey(job, {"parallel.strategy"}, planner::SplitOverReplicas(zero, result.graph)));
      RETURN_IF_ERROR(
          AtKey(job, {"parallel.hints"}, planner::ApplyStatedShardings(hints, result.graph)));
    }
    RETURN_IF_ERROR(AtKey(job, {"parallel.strategy"},
                          planner::AssignStages(static_cast<int>(pp * vpp), result.graph)));
    AddBubbleNote(pp, result);
    ASSIGN_OR_RETURN(result.machine, MachineOf(job, result.num_devices));
    return result;
  }

  Strategy strategy;
  std::vector<int> stage_starts;  // empty: cut by the work of operators
  if (given->has_value()) {
    strategy = **given;
    result.microbatches = job.parallel.microbatches;
    if (search_forward.has_value()) {
      // What is wrong with the strategy is said below.
      const absl::StatusOr<planner::SearchResult> search =
          SearchStrategy(registries, job, {&policy}, *search_forward, hints, strategy);
      if (search.ok()) {
        result.microbatches = search->best.microbatches;
        stage_starts = search->best.stage_starts;
        result.device_groups = search->best.device_groups;
      } else if (result.microbatches == 0) {
        result.microbatches = planner::ChooseMicrobatches(strategy, result.graph);
      }
    }
  } else {
    std::vector<const planner::Policy*> policies = {&policy};
    if (!job.locations.contains("parallel.schedule")) {
      policies = planner::SchedulesToTry(result.policies);
    }
    ASSIGN_OR_RETURN(result.search, SearchStrategy(registries, job, std::move(policies),
                                                   *search_forward, hints, std::nullopt));
    const planner::Candidate& best = result.search->best;
    result.policy = std::string(best.policy->name());
    strategy = best.strategy;
    result.microbatches = best.microbatches;
    stage_starts = best.stage_starts;
    result.device_groups = best.device_groups;
    // One device leaves nothing to choose.
    if (strategy.num_devices() > 1) {
      result.note = StrCat(planner::Describe(best), ", the best of ",
                           Counted(result.search->num_estimated, "estimate"), ": predicted step ",
                           FormatSeconds(best.estimate.step_s));
      if (!best.device_groups.empty()) {
        StrAppend(&result.note,
                  "; the pipeline's groups of devices: ", StrJoin(best.device_groups, ", "));
      }
    }
  }
  RETURN_IF_ERROR(HostDevicesOf(job, strategy.num_devices()).status());
  if (strategy.pp > 1 && policy.needs().placement == planner::Placement::kBidirectional) {
    RETURN_IF_ERROR(AtKey(job, {"parallel.microbatches", "parallel.schedule"},
                          planner::CheckDirections(result.microbatches)));
  }
  RETURN_IF_ERROR(
      AtKey(job, {"parallel.strategy"}, planner::CheckStrategy(strategy, 1, hints, result.graph)));
  const absl::Status applied =
      planner::ApplyStrategy(strategy, result.microbatches, hints, result.graph);
  const bool is_of_hint = applied.GetPayload(planner::kStatedShardingPayload).has_value();
  RETURN_IF_ERROR(AtKey(job, {is_of_hint ? "parallel.hints" : "parallel.microbatches"}, applied));
  if (strategy.splits_by_cost) {
    ASSIGN_OR_RETURN(const planner::Machine machine, MachineOf(job, strategy.num_devices()));
    planner::SplitOptions options;
    options.machine = &machine;
    options.num_groups = static_cast<int>(strategy.pp);
    options.layers = layers;
    RETURN_IF_ERROR(
        AtKey(job, {"parallel.strategy"}, planner::SplitByCost(strategy, options, result.graph)));
  }
  RETURN_IF_ERROR(AtKey(job, {"parallel.strategy"},
                        stage_starts.empty()
                            ? planner::AssignStages(strategy.num_stages(), result.graph)
                            : planner::AssignStagesAt(stage_starts, result.graph)));
  result.chunks_per_group = static_cast<int>(strategy.vpp);
  result.strategy = planner::ToString(strategy);
  result.num_devices = strategy.num_devices();
  if (!result.search.has_value()) AddBubbleNote(strategy.pp, result);
  ASSIGN_OR_RETURN(result.machine, MachineOf(job, result.num_devices));
  return result;
}

absl::StatusOr<graph::Graph> BuildForwardGraph(const Registries& registries, const JobModel& model,
                                               graph::ModelUse use, int64_t batch,
                                               const Strategy& strategy) {
  ASSIGN_OR_RETURN(graph::Graph graph,
                   graph::BuildModelGraph(registries.ops, *model.model, model.config, use, batch));
  // Not worth a search: what the model names.
  Strategy by_hints = strategy;
  by_hints.splits_by_cost = false;
  RETURN_IF_ERROR(planner::ApplyStrategy(by_hints, 1, model.model->tensor_splits, graph));
  RETURN_IF_ERROR(planner::AssignStages(strategy.num_stages(), graph));
  return graph;
}

namespace {

// The hosts for which collectives are chosen: the job's, or the innermost groups of its cluster.
HostDevices HostsToPlanFor(const Job& job, const JobGraph& graph) {
  const bool has_hosts =
      job.locations.contains("cluster.hosts") || job.locations.contains("cluster.host");
  if (has_hosts || job.cluster.file.empty() || !graph.machine.has_value()) {
    return HostDevicesOf(job, graph.num_devices).value_or(HostDevices());
  }
  const planner::Cluster& cluster = graph.machine->cluster;
  HostDevices hosts;
  for (int64_t device = 0; device < graph.num_devices; ++device) {
    const bool is_new = device == 0 || cluster.num_levels() == 0 ||
                        cluster.GroupOf(device, 0) != cluster.GroupOf(device - 1, 0);
    if (is_new) hosts.push_back(0);
    ++hosts.back();
  }
  return hosts;
}

}  // namespace

CompileSettings SettingsOf(const Job& job, const JobGraph& graph) {
  return {.policy = graph.policy,
          .policies = graph.policies,
          .strategy = graph.strategy,
          .devices = DeviceListOf(job, graph.num_devices).value_or(DeviceList()),
          .num_threads = ThreadsOf(job, graph.num_devices),
          .chunks_per_group = graph.chunks_per_group,
          .device_groups = graph.device_groups,
          .split_weight_gradients = job.parallel.split_backward,
          .host_devices = HostsToPlanFor(job, graph),
          .program = graph.settings,
          .machine = graph.machine,
          .precision = graph.model.precision};
}

absl::StatusOr<planner::FoldedPlan> CompileFoldedGraph(const Registries& registries,
                                                       graph::Graph graph,
                                                       const CompileSettings& settings) {
  planner::CompileOptions options;
  options.policy = settings.policy;
  options.policies = &settings.policies;
  ASSIGN_OR_RETURN(options.kernels_of,
                   TraitsOf(registries, settings.devices, static_cast<int>(settings.num_threads)));
  options.threads_per_device = static_cast<uint32_t>(settings.num_threads);
  options.strategy = settings.strategy;
  options.settings = settings.program;
  options.host_devices = settings.host_devices;
  options.chunks_per_group = settings.chunks_per_group;
  options.placement = settings.placement;
  options.device_groups = settings.device_groups;
  options.split_weight_gradients = settings.split_weight_gradients;
  options.passes = settings.passes;
  options.precision = settings.precision;
  if (settings.machine.has_value()) options.machine = &*settings.machine;
  options.estimate = settings.estimate;
  return planner::CompileFolded(registries.ops, std::move(graph), options);
}

absl::StatusOr<planner::Plan> CompileGraph(const Registries& registries, graph::Graph graph,
                                           const CompileSettings& settings) {
  ASSIGN_OR_RETURN(const planner::FoldedPlan folded,
                   CompileFoldedGraph(registries, std::move(graph), settings));
  return planner::ExpandPlan(folded);
}

}  // namespace penstock::cli
