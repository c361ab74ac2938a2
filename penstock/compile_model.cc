#include "penstock/compile_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/training.h"
#include "planner/compile.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/machine.h"
#include "planner/search/schedules.h"
#include "planner/search/search.h"
#include "planner/search/split_by_cost.h"
#include "planner/search/this_machine.h"
#include "planner/strategy/directions.h"
#include "planner/strategy/repeated_layers.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock {
namespace {

// The forward pass of a training step, which returns the loss.
absl::StatusOr<graph::Graph> ForwardOf(const graph::Graph& step) {
  const auto is_forward = [&step](const graph::Node& node) {
    return node.phase == graph::Phase::kForward;
  };
  const absl::Span<const graph::Node> nodes = step.nodes();
  if (!step.meshes().empty()) {
    return absl::InvalidArgumentError(
        StrCat("the graph has the mesh '", step.meshes()[0].name,
               "' already; a strategy would lay it out anew: leave either out"));
  }
  if (step.returns().empty() || std::all_of(nodes.begin(), nodes.end(), is_forward)) {
    return absl::InvalidArgumentError(
        "choosing by cost is for training steps (graph/training.h), and the graph is none; give a "
        "strategy of axis sizes, such as \"dp=2,tp=2\"");
  }
  graph::Graph forward(step.name());
  std::vector<graph::ValueId> copies(static_cast<size_t>(step.num_values()), graph::kNoValue);
  for (const graph::Node& node : nodes) {
    if (!is_forward(node)) continue;
    graph::Node copy = node;
    for (graph::ValueId& operand : copy.operands) operand = copies[static_cast<size_t>(operand)];
    copy.results.clear();
    std::vector<std::string> names;
    for (const graph::ValueId result : node.results) names.push_back(step.value(result).name);
    const graph::NodeId id = forward.AddTyped(std::move(copy), step.ResultTypes(node), names);
    for (size_t r = 0; r < node.results.size(); ++r) {
      copies[static_cast<size_t>(node.results[r])] = forward.node(id).results[r];
    }
  }
  const graph::ValueId loss = copies[static_cast<size_t>(step.returns()[0].value)];
  if (loss == graph::kNoValue) {
    return absl::InvalidArgumentError(
        "choosing by cost: the first value that the graph returns is not the loss of its forward "
        "pass");
  }
  forward.mutable_returns().push_back({.value = loss, .sharding = std::nullopt});
  return forward;
}

// What the step does with its gradients, as far as it decides how long that takes and what memory
// it needs.
graph::TrainingOptions TrainingOf(const graph::Graph& step) {
  graph::TrainingOptions training;
  training.optimizer = graph::Optimizer::kSgd;
  training.clip_norm = 0;
  training.momentum = 0;
  for (const graph::Node& node : step.nodes()) {
    if (node.op->name() == "adamw") training.optimizer = graph::Optimizer::kAdamW;
    if (node.op->name() == "sgd" && node.operands.size() > 4) training.momentum = 0.9;
    if (node.op->name() == "sum_squares") training.clip_norm = 1;
  }
  return training;
}

// Of each innermost group of the machine's devices, how many there are, for `num_devices` in all.
std::vector<uint32_t> HostDevicesOf(const planner::Machine& machine, int64_t num_devices) {
  std::vector<uint32_t> hosts;
  for (int64_t device = 0; device < num_devices; ++device) {
    const bool is_new =
        device == 0 || machine.cluster.num_levels() == 0 ||
        machine.cluster.GroupOf(device, 0) != machine.cluster.GroupOf(device - 1, 0);
    if (is_new) hosts.push_back(0);
    ++hosts.back();
  }
  return hosts;
}

// How a graph was laid out.
struct LaidOut {
  planner::Strategy strategy;
  std::string policy;
  std::vector<int> device_groups = {};
};

// Cuts the stages and applies the strategy.
absl::Status Apply(const LaidOut& layout, int64_t microbatches, absl::Span<const int> stage_starts,
                   const ModelOptions& options, const planner::Machine* machine,
                   absl::Span<const planner::RepeatedLayers> runs, graph::Graph& graph) {
  const planner::Strategy& strategy = layout.strategy;
  RETURN_IF_ERROR(planner::ApplyStrategy(strategy, microbatches, options.splits, graph));
  if (strategy.splits_by_cost) {
    planner::SplitOptions split;
    split.machine = machine;
    split.hints = options.splits;
    split.num_groups = static_cast<int>(strategy.pp);
    split.runs.assign(runs.begin(), runs.end());
    RETURN_IF_ERROR(planner::SplitByCost(strategy, split, graph));
  }
  return stage_starts.empty() ? planner::AssignStages(strategy.num_stages(), graph)
                              : planner::AssignStagesAt(stage_starts, graph);
}

// Searches, and applies what is found.
absl::StatusOr<LaidOut> ApplyFastest(const Registries& registries, const ModelOptions& options,
                                     const planner::Machine& machine, const graph::Graph& forward,
                                     absl::Span<const planner::RepeatedLayers> runs,
                                     graph::Graph& graph) {
  planner::SearchProblem problem;
  problem.ops = &registries.ops;
  problem.forward = &forward;
  problem.training = TrainingOf(graph);
  problem.hints = options.splits;
  problem.machine = &machine;
  problem.num_devices = options.devices;
  problem.microbatches = options.microbatches;
  problem.policies = planner::SchedulesToTry(registries.policies);
  if (!options.policy.empty()) {
    const planner::Policy* const policy = registries.policies.Find(options.policy);
    if (policy == nullptr) {
      return absl::InvalidArgumentError(StrCat("unknown policy '", options.policy, "'"));
    }
    problem.policies = {policy};
  }
  problem.lower = [&registries](graph::Graph& lowered) {
    for (const planner::Pass& pass : planner::EstimatePasses(registries.ops)) {
      RETURN_IF_ERROR(pass.run(lowered));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const planner::SearchResult found, planner::FindStrategy(problem));
  RETURN_IF_ERROR(planner::CheckFits(found));
  const planner::Candidate& best = found.best;
  LaidOut layout = {best.strategy, std::string(best.policy->name()), best.device_groups};
  RETURN_IF_ERROR(
      Apply(layout, best.microbatches, best.stage_starts, options, &machine, runs, graph));
  return layout;
}

absl::StatusOr<LaidOut> LayOut(const Registries& registries, const ModelOptions& options,
                               const planner::Machine* machine, graph::Graph& graph) {
  ASSIGN_OR_RETURN(const std::optional<planner::Strategy> given,
                   planner::ParseStrategy(options.strategy));
  LaidOut layout = {given.value_or(planner::Strategy()),
                    options.policy.empty() ? std::string("1f1b") : options.policy};
  // A policy with several chunks a group has as many stages.
  const planner::Policy* policy = registries.policies.Find(layout.policy);
  if (policy != nullptr && layout.strategy.vpp == 1) {
    layout.strategy.vpp = planner::StagesPerGroup(*policy);
  }
  std::vector<planner::RepeatedLayers> runs;
  std::optional<graph::Graph> forward;
  if (!given.has_value() || given->splits_by_cost) {
    ASSIGN_OR_RETURN(forward, ForwardOf(graph));
    runs = planner::InPairs(
        planner::FindRepeatedRuns(*forward, options.splits, planner::kLeastLayers));
  }
  if (!given.has_value()) {
    return ApplyFastest(registries, options, *machine, *forward, runs, graph);
  }
  const int64_t microbatches = options.microbatches > 0
                                   ? options.microbatches
                                   : planner::ChooseMicrobatches(layout.strategy, graph);
  RETURN_IF_ERROR(Apply(layout, microbatches, {}, options, machine, runs, graph));
  return layout;
}

}  // namespace

absl::StatusOr<planner::Plan> CompileModel(const Registries& registries, graph::Graph graph,
                                           const ModelOptions& options) {
  if (options.threads_per_device < 1 || options.microbatches < 0 || options.devices < 1) {
    return absl::InvalidArgumentError(
        StrCat("threads_per_device = ", options.threads_per_device,
               ", microbatches = ", options.microbatches, ", devices = ", options.devices,
               ": expected at least 1 thread, 0 micro-batches and 1 device"));
  }
  planner::CompileOptions compile;
  compile.policy = options.policy.empty() ? "1f1b" : options.policy;
  compile.policies = &registries.policies;
  compile.kernels = kernels::TraitsOf(registries.kernels, options.threads_per_device);
  compile.threads_per_device = static_cast<uint32_t>(options.threads_per_device);
  std::optional<planner::Machine> host;
  if (!options.strategy.empty()) {
    ASSIGN_OR_RETURN(const std::optional<planner::Strategy> given,
                     planner::ParseStrategy(options.strategy));
    const planner::Machine* machine = options.machine;
    const int64_t devices = given.has_value() ? given->num_devices() : options.devices;
    if (machine != nullptr && devices > machine->cluster.num_devices()) {
      return absl::InvalidArgumentError(StrCat("the machine has ",
                                               Counted(machine->cluster.num_devices(), "device"),
                                               ", and the strategy needs ", devices));
    }
    const bool is_chosen = !given.has_value() || given->splits_by_cost;
    if (is_chosen && machine == nullptr) {
      const int64_t threads = std::min<int64_t>(options.threads_per_device, UsableCores());
      ASSIGN_OR_RETURN(host, planner::MachineOfThisHost(devices, threads));
      machine = &*host;
    }
    ASSIGN_OR_RETURN(LaidOut layout, LayOut(registries, options, machine, graph));
    compile.policy = std::move(layout.policy);
    compile.strategy = planner::ToString(layout.strategy);
    compile.chunks_per_group = static_cast<int>(layout.strategy.vpp);
    compile.optimizer_on_host = layout.strategy.optimizer_on_host;
    compile.device_groups = std::move(layout.device_groups);
    compile.machine = machine;
    if (options.machine != nullptr) {
      compile.host_devices = HostDevicesOf(*machine, layout.strategy.num_devices());
    }
  }
  return planner::Compile(registries.ops, std::move(graph), compile);
}

absl::StatusOr<std::unique_ptr<actors::Session>> StartSession(const Registries& registries,
                                                              planner::Plan plan,
                                                              actors::SessionOptions options) {
  if (options.kernels == nullptr) options.kernels = &registries.kernels;
  if (options.policies == nullptr) options.policies = &registries.policies;
  options.threads_per_device = static_cast<int>(plan.threads_per_device);
  return actors::Session::Start(std::move(plan), options);
}

}  // namespace penstock
