#include "cli/job_graph.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/checkpoint_copy.h"
#include "cli/device_list.h"
#include "cli/host_layout.h"
#include "cli/job_machine.h"
#include "cli/job_policy.h"
#include "fmt/format.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "graph/training.h"
#include "planner/cluster/default_core.h"
#include "planner/compile.h"
#include "planner/policy/stage_layouts.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/schedules.h"
#include "planner/search/split_by_cost.h"
#include "planner/strategy/directions.h"
#include "planner/strategy/move_optimizer.h"
#include "planner/strategy/repeated_layers.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/stated_shardings.h"
#include "planner/strategy/strategy.h"
#include "planner/strategy/zero.h"

namespace penstock::cli {
namespace {

using planner::Strategy;

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
  const int64_t on_host = strategy.optimizer_on_host ? 1 : 0;
  for (const auto& [axis, size] :
       {std::pair("dp", strategy.dp), std::pair("tp", strategy.tp), std::pair("pp", strategy.pp)}) {
    const int64_t others = (strategy.num_devices() - on_host) / size;
    const int64_t fitting = (devices - on_host) / others;
    if (fitting == 0 || fitting * others + on_host != devices) continue;
    Strategy changed = strategy;
    (axis == std::string_view("dp")   ? changed.dp
     : axis == std::string_view("tp") ? changed.tp
                                      : changed.pp) = fitting;
    // Options may need an axis of some size.
    if (!planner::ParseStrategy(ToString(changed)).ok()) continue;
    return StrCat(", or ", axis, "=", fitting, " to use ", devices);
  }
  return "";
}

absl::Status CheckDevicesOf(const Job& job, const Strategy& strategy) {
  const int64_t devices = job.cluster.devices.value_or(strategy.num_devices());
  return CheckDevices(
      job, strategy.num_devices(),
      StrCat("strategy ", planner::ToString(strategy),
             strategy.optimizer_on_host ? ", with the one that has the optimiser," : ""),
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

// What is to be searched for: the fastest strategy for the job's machine, by the best of the
// schedules; of a strategy that is given, the best number of micro-batches.
absl::StatusOr<std::shared_ptr<const JobSearch>> DescribeSearch(
    const Registries& registries, const Job& job, std::vector<const planner::Policy*> policies,
    const graph::Graph& forward, absl::Span<const graph::SplitHint> hints,
    std::optional<Strategy> given) {
  int64_t num_devices = 0;
  if (given.has_value()) {
    num_devices = given->num_devices();
  } else {
    ASSIGN_OR_RETURN(num_devices, DevicesForAuto(job));
  }
  const graph::TrainingOptions training = TrainingOptionsOf(job);
  ASSIGN_OR_RETURN(planner::Machine whole, MachineOf(job, num_devices));
  ASSIGN_OR_RETURN(planner::Machine machine,
                   WithoutCheckpointCopy(job, forward, training, num_devices, std::move(whole)));
  auto search = std::make_shared<JobSearch>(
      JobSearch{forward, {hints.begin(), hints.end()}, std::move(machine), {}});
  planner::SearchProblem& problem = search->problem;
  problem.strategy = given;
  problem.num_devices = num_devices;
  problem.training = training;
  problem.ops = &registries.ops;
  problem.forward = &search->forward;
  problem.hints = search->hints;
  problem.machine = &search->machine;
  problem.policies = std::move(policies);
  problem.microbatches = job.parallel.microbatches;
  if (!given.has_value()) problem.chunks = job.parallel.chunks;
  // A job that gives both its strategy and the kinds of devices means which stage is on which kind.
  problem.keeps_group_order = given.has_value() && ListsDeviceKinds(job);
  problem.splits_weight_gradients = job.parallel.split_backward;
  problem.recompute = job.parallel.recompute;
  const DType precision = IsHalf(job.train.dtype) ? job.train.dtype : DType::kF32;
  problem.lower = [passes = planner::EstimatePasses(
                       registries.ops, precision, job.train.sum_dtype == DType::kF32,
                       job.train.residual_dtype == DType::kF32)](graph::Graph& graph) {
    for (const planner::Pass& pass : passes) RETURN_IF_ERROR(pass.run(graph));
    return absl::OkStatus();
  };
  return search;
}

absl::StatusOr<planner::SearchResult> SearchStrategy(const Job& job,
                                                     planner::SearchProblem problem) {
  absl::StatusOr<planner::SearchResult> result = planner::FindStrategy(problem);
  if (result.ok()) {
    // Of this machine, the run will tell what it has.
    if (!job.cluster.file.empty() && !problem.strategy.has_value()) {
      absl::Status fits = planner::CheckFits(*result);
      if (!fits.ok() && !job.checkpoint.path.empty()) {
        fits = absl::Status(fits.code(), StrCat(ToStd(fits.message()),
                                                "; memory for the copies of states that go into "
                                                "checkpoints is set aside"));
      }
      RETURN_IF_ERROR(AtKey(job, {"cluster.file"}, fits));
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

// Stages on the meshes of the file, as it says.
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
  if (job.parallel.recompute.value_or(planner::Recompute::kNone) != planner::Recompute::kNone) {
    return AtKey(
        job, {"parallel.recompute"},
        absl::InvalidArgumentError(StrCat(job.model.file,
                                          " is laid out by the meshes of its stages, which are "
                                          "not recomputed; leave it out")));
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

// Nothing but a mesh, a hint or the search says what tp splits in the graph of a file.
absl::Status CheckTensorSplits(const Job& job, const Strategy& strategy,
                               const graph::Graph& forward) {
  const bool has_stated_splits =
      std::any_of(job.parallel.hints.begin(), job.parallel.hints.end(),
                  [](const graph::SplitHint& hint) { return hint.IsFor("tp"); });
  if (has_stated_splits && strategy.splits_by_cost) {
    return AtKey(job, {"parallel.hints"},
                 absl::InvalidArgumentError("splits=cost chooses what tp splits: leave it out, or "
                                            "the hints that name tp"));
  }
  if (job.model.file.empty() || strategy.tp == 1 || strategy.splits_by_cost ||
      !forward.meshes().empty() || has_stated_splits) {
    return absl::OkStatus();
  }
  const int64_t microbatches = job.parallel.microbatches > 0
                                   ? job.parallel.microbatches
                                   : planner::ChooseMicrobatches(strategy, forward);
  return AtKey(
      job, {"parallel.strategy"},
      absl::InvalidArgumentError(StrCat(
          "tp = ", strategy.tp, ": ", job.model.file,
          " does not say which weights to split; add splits=cost, which chooses by cost, or put "
          "the axes into a mesh before its graph and a sharding on the batch and on weights, "
          "for example",
          ExampleOfSplit(strategy, microbatches, forward))));
}

// Whether a search decides something about a job: its strategy, its micro-batches, its layout, or
// where the pipeline is cut.
absl::StatusOr<bool> NeedsSearch(const Job& job, const std::optional<Strategy>& given,
                                 const JobGraph& graph) {
  // A search knows only stages with equally many devices.
  if (given.has_value() && given->optimizer_on_host) return false;
  if (!given.has_value() || job.parallel.microbatches == 0 || !graph.layouts.empty()) return true;
  // Where to cut depends on which devices are faster.
  const bool may_be_unlike =
      !job.cluster.file.empty() || ListsDeviceKinds(job) || !job.cluster.host_speeds.empty();
  if (given->pp == 1 || !may_be_unlike) return false;
  ASSIGN_OR_RETURN(const planner::Machine machine, MachineOf(job, given->num_devices()));
  return machine.cluster.spec().kinds.size() > 1;
}

// A file that says how it is split is taken at its word.
absl::Status LayOutByMesh(const Job& job, const std::optional<Strategy>& given,
                          absl::Span<const graph::SplitHint> hints, JobGraph& result) {
  const graph::Mesh& mesh = result.graph.meshes()[0];
  const auto refuse = [&job](std::string message) {
    return AtKey(job, {"parallel.strategy"}, absl::InvalidArgumentError(std::move(message)));
  };
  if (given.has_value() && !IsMeshOf(*given, mesh)) {
    return refuse(StrCat(job.model.file, " is laid out by its mesh ", mesh.name, " (",
                         MeshText(mesh), "), not by ", planner::ToString(*given),
                         "; change the mesh, or leave the strategy \"auto\""));
  }
  // Of a strategy, what no mesh says.
  Strategy strategy = given.value_or(Strategy());
  if (!given.has_value()) RETURN_IF_ERROR(SetRecompute(job, &strategy));
  if (strategy.splits_by_cost) {
    return refuse(StrCat("splits = cost: ", job.model.file, " is laid out by its mesh ", mesh.name,
                         "; leave out either"));
  }
  if (strategy.optimizer_on_host) {
    return refuse(StrCat("optimizer = host: ", job.model.file, " is laid out by its mesh ",
                         mesh.name, "; put the parameters on a stage of their own there"));
  }
  if (strategy.sp) {
    return refuse(StrCat("sp = true: ", job.model.file, " is laid out by its mesh ", mesh.name,
                         "; write tp on the values that are to be split over sequences"));
  }
  result.num_devices = mesh.num_devices() * strategy.pp;
  RETURN_IF_ERROR(CheckDevices(job, result.num_devices, StrCat("mesh ", mesh.name),
                               ", or change the sizes of the mesh's axes"));
  RETURN_IF_ERROR(HostDevicesOf(job, result.num_devices).status());
  result.strategy = MeshText(mesh);
  if (strategy.pp > 1) StrAppend(&result.strategy, ",pp=", strategy.pp);
  if (strategy.vpp > 1) StrAppend(&result.strategy, ",vpp=", strategy.vpp);
  if (strategy.zero > 0) StrAppend(&result.strategy, ",zero=", strategy.zero);
  if (strategy.recompute != planner::Recompute::kNone) {
    StrAppend(&result.strategy, ",recompute=", planner::Name(strategy.recompute));
  }
  if (strategy.offload != planner::Offload::kNone) {
    StrAppend(&result.strategy, ",offload=", planner::Name(strategy.offload));
  }
  result.chunks_per_group = static_cast<int>(strategy.vpp);
  result.microbatches = mesh.num_microbatches();
  result.note = StrCat("laid out by the mesh ", mesh.name, " of ", job.model.file);
  planner::MarkRecompute(strategy.recompute, result.graph);
  RETURN_IF_ERROR(AtKey(job, {"parallel.hints"},
                        planner::ApplyStatedShardings(hints, result.graph, strategy.zero > 0)));
  planner::MarkOffload(strategy.offload, result.graph);
  if (strategy.zero > 0) {
    RETURN_IF_ERROR(
        AtKey(job, {"parallel.strategy"}, planner::SplitOverReplicas(strategy.zero, result.graph)));
    RETURN_IF_ERROR(
        AtKey(job, {"parallel.hints"}, planner::ApplyStatedShardings(hints, result.graph)));
  }
  RETURN_IF_ERROR(AtKey(job, {"parallel.strategy"},
                        planner::AssignStages(strategy.num_stages(), result.graph)));
  AddBubbleNote(strategy.pp, result);
  ASSIGN_OR_RETURN(result.machine, MachineOf(job, result.num_devices));
  return absl::OkStatus();
}

// A strategy with what a search adds to it.
struct Choice {
  Strategy strategy;
  std::vector<int> stage_starts = {};  // empty: cut by the work of operators
};

// Whether a step is faster, and fits as well; rounding is no difference.
bool IsBetter(const planner::StepEstimate& a, const planner::StepEstimate& b) {
  const double excess_a = a.excess_bytes();
  const double excess_b = b.excess_bytes();
  if (excess_a > 0 || excess_b > 0) return excess_a < excess_b;
  return a.step_s * (1 + planner::kTieTolerance) < b.step_s;
}

// What is open of a strategy that is given.
absl::StatusOr<planner::SearchResult> SearchGiven(const Registries& registries, const Job& job,
                                                  const Strategy& given,
                                                  const planner::Policy& policy,
                                                  const graph::Graph& forward,
                                                  absl::Span<const graph::SplitHint> hints) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const JobSearch> described,
                   DescribeSearch(registries, job, {&policy}, forward, hints, given));
  return SearchStrategy(job, described->problem);
}

// The same with the best of the layouts that the policy may have.
absl::StatusOr<planner::SearchResult> SearchGiven(const Registries& registries, const Job& job,
                                                  const Strategy& given,
                                                  const planner::Policy& policy,
                                                  const graph::Graph& forward,
                                                  absl::Span<const graph::SplitHint> hints,
                                                  const JobGraph& graph) {
  if (graph.layouts.empty()) {
    return SearchGiven(registries, job, given, policy, forward, hints);
  }
  absl::StatusOr<planner::SearchResult> best = absl::InternalError("no layout");
  for (const auto& layout : graph.layouts) {
    Strategy strategy = given;
    strategy.vpp = layout->needs().min_chunks;
    absl::StatusOr<planner::SearchResult> search =
        SearchGiven(registries, job, strategy, *layout, forward, hints);
    const bool is_first = &layout == &graph.layouts[0];
    if (is_first ||
        (search.ok() && (!best.ok() || IsBetter(search->best.estimate, best->best.estimate)))) {
      best = std::move(search);
    }
  }
  return best;
}

// What the job leaves open is searched for with `forward`, which is empty where nothing is open.
// Fills in the micro-batches, the groups of devices and, of a strategy that was found, the policy
// and the note.
absl::StatusOr<Choice> Choose(const Registries& registries, const Job& job,
                              const std::optional<Strategy>& given, const planner::Policy& policy,
                              const std::optional<graph::Graph>& forward,
                              absl::Span<const graph::SplitHint> hints, JobGraph& result) {
  if (given.has_value()) {
    result.microbatches = job.parallel.microbatches;
    if (!forward.has_value()) {
      if (result.microbatches == 0) {
        result.microbatches = planner::ChooseMicrobatches(*given, result.graph);
      }
      return Choice{*given};
    }
    // What is wrong with the strategy is said where it is applied.
    const absl::StatusOr<planner::SearchResult> search =
        SearchGiven(registries, job, *given, policy, *forward, hints, result);
    if (!search.ok()) {
      if (result.microbatches == 0) {
        result.microbatches = planner::ChooseMicrobatches(*given, result.graph);
      }
      return Choice{*given};
    }
    const planner::Candidate& best = search->best;
    result.microbatches = best.microbatches;
    result.device_groups = best.device_groups;
    if (result.layouts.empty()) return Choice{*given, best.stage_starts};
    result.placement = best.policy->needs().placement;
    result.has_chosen_chunks = given->vpp == 1;
    const bool has_chunks = best.strategy.vpp > 1;
    result.note = StrCat(Counted(best.strategy.vpp, "chunk"), " a stage",
                         has_chunks ? StrCat(" (", planner::Name(*result.placement), ")") : "",
                         ", the best of ", result.layouts.size(), " layouts: predicted step ",
                         FormatSeconds(best.estimate.step_s));
    return Choice{best.strategy, best.stage_starts};
  }
  std::vector<const planner::Policy*> policies = {&policy};
  if (!job.locations.contains("parallel.schedule")) {
    policies = planner::SchedulesToTry(result.policies);
  }
  // The policy by itself has the others.
  for (const auto& layout : result.layouts) {
    if (layout->needs().placement == planner::Placement::kVee) policies.push_back(layout.get());
  }
  ASSIGN_OR_RETURN(result.searched, DescribeSearch(registries, job, std::move(policies), *forward,
                                                   hints, std::nullopt));
  ASSIGN_OR_RETURN(result.search, SearchStrategy(job, result.searched->problem));
  const planner::Candidate& best = result.search->best;
  result.policy = std::string(best.policy->name());
  if (!result.layouts.empty()) result.placement = best.policy->needs().placement;
  result.microbatches = best.microbatches;
  result.device_groups = best.device_groups;
  // One device leaves nothing to choose.
  if (best.strategy.num_devices() > 1) {
    result.note = StrCat(planner::Describe(best), ", the best of ",
                         Counted(result.search->num_estimated, "estimate"), ": estimated step ",
                         FormatSeconds(best.estimate.step_s));
    if (!best.device_groups.empty()) {
      StrAppend(&result.note,
                "; the pipeline's groups of devices: ", StrJoin(best.device_groups, ", "));
    }
    const planner::DeviceKind& kind = result.searched->machine.cluster.KindOf(0);
    if (job.cluster.file.empty() && kind.kernels == planner::DefaultCore().kernels) {
      result.notes +=
          "note: the strategy is chosen by built-in figures of a core; `penstock profile -o "
          "here.toml` measures this machine, for --cluster here.toml\n";
    }
  }
  return Choice{best.strategy, best.stage_starts};
}

// The device that has the optimiser is a CPU, and so is that of the cluster that is predicted.
absl::Status CheckHostDevice(const Job& job, const Strategy& strategy,
                             const planner::Machine& machine) {
  ASSIGN_OR_RETURN(const DeviceList devices, DeviceListOf(job, strategy.num_devices()));
  if (devices.KindOf(0) != "cpu") {
    std::vector<std::string> kinds = {"\"cpu\""};
    for (int64_t device = 1; device < strategy.num_devices(); ++device) {
      kinds.push_back(StrCat("\"", devices.KindOf(device), "\""));
    }
    return AtKey(job, {"cluster.device_kind", "parallel.strategy"},
                 absl::InvalidArgumentError(StrCat(
                     "optimizer=host: device 0 has the optimiser and is to be a CPU, not \"",
                     devices.KindOf(0), "\"; set device_kind to [", StrJoin(kinds, ", "), "]")));
  }
  const planner::DeviceKind& kind = machine.cluster.KindOf(0);
  if (!planner::HasHostLink(kind)) return absl::OkStatus();
  return AtKey(
      job, {"cluster.file"},
      absl::InvalidArgumentError(StrCat(
          "optimizer=host: device 0 of the cluster is ", kind.name,
          ", but the optimiser is to be on a CPU; give a cluster file whose first device is of a "
          "kind without host_link_bytes_per_s")));
}

absl::Status LayOutByStrategy(const Job& job, const Choice& choice, const planner::Policy& policy,
                              absl::Span<const planner::RepeatedLayers> runs,
                              absl::Span<const graph::SplitHint> hints, JobGraph& result) {
  const Strategy& strategy = choice.strategy;
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
  ASSIGN_OR_RETURN(result.machine, MachineOf(job, strategy.num_devices()));
  if (strategy.optimizer_on_host) RETURN_IF_ERROR(CheckHostDevice(job, strategy, *result.machine));
  if (strategy.splits_by_cost) {
    planner::SplitOptions options;
    options.machine = &*result.machine;
    options.hints = hints;
    options.num_groups = static_cast<int>(strategy.pp);
    options.runs.assign(runs.begin(), runs.end());
    RETURN_IF_ERROR(
        AtKey(job, {"parallel.strategy"}, planner::SplitByCost(strategy, options, result.graph)));
  }
  RETURN_IF_ERROR(AtKey(job, {"parallel.strategy"},
                        choice.stage_starts.empty()
                            ? planner::AssignStages(strategy.num_stages(), result.graph)
                            : planner::AssignStagesAt(choice.stage_starts, result.graph)));
  result.chunks_per_group = static_cast<int>(strategy.vpp);
  result.strategy = planner::ToString(strategy);
  result.num_devices = strategy.num_devices();
  result.optimizer_on_host = strategy.optimizer_on_host;
  if (!result.search.has_value()) AddBubbleNote(strategy.pp, result);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobGraph> BuildJobGraph(const Registries& registries, const Job& job) {
  JobGraph result;
  ASSIGN_OR_RETURN(result.policies, PoliciesOf(registries, job));
  const planner::Policy& policy = *result.policies.Find(job.parallel.schedule);
  result.policy = std::string(policy.name());
  absl::StatusOr<std::optional<Strategy>> parsed = planner::ParseStrategy(job.parallel.strategy);
  if (!parsed.ok()) return AtKey(job, {"parallel.strategy"}, parsed.status());
  std::optional<Strategy>& given = *parsed;
  if (given.has_value() && given->pp > 1) RETURN_IF_ERROR(SetChunks(job, policy, &*given));
  if (given.has_value() && given->optimizer_on_host) {
    RETURN_IF_ERROR(AtKey(job, {"parallel.chunks", "parallel.schedule"},
                          planner::CheckMovedOptimizer(policy, static_cast<int>(given->vpp))));
  }
  if (policy.needs().chooses_layout &&
      !(given.has_value() && (given->pp == 1 || given->optimizer_on_host))) {
    const bool is_stated = given.has_value() && given->vpp > 1;
    const auto layouts =
        planner::LayoutsToTry(static_cast<int>(is_stated ? given->vpp : job.parallel.chunks));
    for (const planner::StageLayout& layout : layouts) {
      if (layouts.size() > 1) result.layouts.push_back(planner::WithLayout(policy, layout));
    }
  }
  if (given.has_value()) RETURN_IF_ERROR(SetRecompute(job, &*given));
  if (!given.has_value() && policy.needs().placement == planner::Placement::kBidirectional) {
    return AtKey(job, {"parallel.schedule"},
                 absl::InvalidArgumentError(
                     StrCat("schedule '", result.policy,
                            "' runs each pipeline stage on two groups "
                            "of devices, which the strategy \"auto\" does not consider; give a "
                            "strategy such as pp=4")));
  }
  if (given.has_value()) RETURN_IF_ERROR(CheckDevicesOf(job, *given));

  ASSIGN_OR_RETURN(result.model, ResolveModel(registries, job));
  ASSIGN_OR_RETURN(graph::Graph forward, ForwardGraph(registries, job, result.model));
  if (given.has_value()) RETURN_IF_ERROR(CheckTensorSplits(job, *given, forward));
  result.num_parameters = graph::NumParameters(forward);
  std::vector<graph::SplitHint> hints = job.parallel.hints;
  if (result.model.model != nullptr) {
    const std::vector<graph::SplitHint>& splits = result.model.model->tensor_splits;
    hints.insert(hints.end(), splits.begin(), splits.end());
  }
  // Of a file: which statements each stage runs.
  const bool states_stages = std::any_of(forward.nodes().begin(), forward.nodes().end(),
                                         [](const graph::Node& node) { return node.stage > 0; });
  const std::vector<planner::RepeatedLayers> runs =
      planner::InPairs(planner::FindRepeatedRuns(forward, hints, planner::kLeastLayers));
  ASSIGN_OR_RETURN(const bool needs_search, NeedsSearch(job, given, result));
  std::optional<graph::Graph> search_forward;
  if (needs_search && forward.meshes().empty()) search_forward = forward;
  result.settings = ProgramSettings(job, result.model, forward);
  absl::StatusOr<graph::Graph> training =
      graph::BuildTrainingGraph(registries.ops, std::move(forward), TrainingOptionsOf(job));
  if (!training.ok()) return AtKey(job, {"model.file"}, training.status());
  result.graph = *std::move(training);
  if (!job.model.file.empty()) result.notes = IgnoredKeys(job, result.graph);
  RETURN_IF_ERROR(
      AtKey(job, {"parallel.hints"}, planner::CheckStatedShardings(hints, result.graph)));

  if (states_stages) {
    RETURN_IF_ERROR(LayOutByStages(job, given.has_value(), result));
  } else if (!result.graph.meshes().empty()) {
    RETURN_IF_ERROR(LayOutByMesh(job, given, hints, result));
  } else {
    ASSIGN_OR_RETURN(const Choice choice,
                     Choose(registries, job, given, policy, search_forward, hints, result));
    RETURN_IF_ERROR(LayOutByStrategy(job, choice, policy, runs, hints, result));
  }
  return result;
}

}  // namespace penstock::cli
