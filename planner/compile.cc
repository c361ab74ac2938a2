#include "planner/compile.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <xxhash.h>

#include "base/half.h"
#include "base/status_macros.h"
#include "graph/text.h"
#include "planner/lower/lower_to_plan.h"
#include "planner/plan/verify_folded_plan.h"
#include "planner/search/stage_work.h"
#include "planner/sharding/decompose.h"
#include "planner/sharding/insert_reshards.h"
#include "planner/sharding/lower_reshards.h"
#include "planner/sharding/propagate.h"
#include "planner/sharding/reshard_cache.h"
#include "planner/sharding/select_mesh.h"
#include "planner/sharding/widen_sums.h"
#include "planner/simulator/phase_times.h"
#include "planner/simulator/planned_pipeline.h"
#include "planner/simulator/simulate_plan.h"
#include "planner/strategy/directions.h"
#include "planner/strategy/fuse_epilogues.h"
#include "planner/strategy/mixed_precision.h"
#include "planner/strategy/move_optimizer.h"
#include "planner/strategy/offload.h"
#include "planner/strategy/recompute.h"

namespace penstock::planner {
namespace {

constexpr std::string_view kSplitSends = "split-sends";
constexpr std::string_view kSplitBatches = "split-batches";

bool IsBidirectional(const std::optional<StagePlacement>& placement) {
  return placement.has_value() && placement->placement == Placement::kBidirectional;
}

Pass MixedPrecisionPass(const graph::OpRegistry& ops, DType dtype, bool residuals_in_f32) {
  return {"mixed-precision", [&ops, dtype, residuals_in_f32](graph::Graph& g) {
            return MixPrecision(ops, dtype, g, residuals_in_f32);
          }};
}

}  // namespace

std::vector<Pass> CompilePasses(const graph::OpRegistry& ops, const SendOptions& sends,
                                DType precision, int64_t sub_batch_bytes, FusesStage fuses,
                                bool sums_in_f32, bool optimizer_on_host, bool residuals_in_f32) {
  const auto caches = std::make_shared<ReshardCaches>();
  std::vector<Pass> passes = {
      {"propagate", [](graph::Graph& g) { return Propagate(PropagationLevel::kUserPriority, &g); }},
      {"recompute", [](graph::Graph& g) { return AddRecomputation(g); }},
      {"decompose", [&ops](graph::Graph& g) { return DecomposeSplitFactors(ops, g); }},
      {"insert-reshards",
       [&ops, caches](graph::Graph& g) { return InsertReshards(ops, g, caches.get()); }},
      {std::string(kSplitSends),
       [&ops, sends](graph::Graph& g) { return SplitSends(ops, sends, g); }},
      {"lower-reshards",
       [&ops, caches](graph::Graph& g) { return LowerReshards(ops, g, caches.get()); }},
      // Copies have the layout of what they copy, which is settled here.
      {"offload", [&ops](graph::Graph& g) { return AddOffload(ops, g); }},
      {std::string(kSplitBatches),
       [&ops, sub_batch_bytes](graph::Graph& g) {
         return SplitIntoSubBatches(ops, sub_batch_bytes, g);
       }},
  };
  if (fuses != nullptr) {
    passes.push_back({"fuse-epilogues", [&ops, fuses = std::move(fuses)](graph::Graph& g) {
                        return FuseEpilogues(ops, fuses, g);
                      }});
  }
  if (sums_in_f32) {
    const auto split_sends = std::find_if(
        passes.begin(), passes.end(), [](const Pass& pass) { return pass.name == kSplitSends; });
    passes.insert(split_sends,
                  {"widen-sums", [&ops](graph::Graph& g) { return WidenSums(ops, g); }});
  }
  if (optimizer_on_host) {
    passes.insert(passes.begin(),
                  {"move-optimizer", [&ops](graph::Graph& g) { return MoveOptimizer(ops, g); }});
  }
  // Before move-optimizer: parameters are cast where they are.
  if (IsHalf(precision)) {
    passes.insert(passes.begin(), MixedPrecisionPass(ops, precision, residuals_in_f32));
  }
  if (IsBidirectional(sends.placement)) {
    passes.insert(passes.begin(),
                  {"split-directions", [](graph::Graph& g) { return SplitDirections(g); }});
  }
  return passes;
}

std::vector<Pass> EstimatePasses(const graph::OpRegistry& ops, DType precision, bool sums_in_f32,
                                 bool residuals_in_f32) {
  std::vector<Pass> passes =
      CompilePasses(ops, {}, precision, kLeastSubBatchBytes, nullptr, sums_in_f32,
                    /*optimizer_on_host=*/false, residuals_in_f32);
  std::erase_if(passes, [](const Pass& pass) {
    return pass.name == kSplitSends || pass.name == kSplitBatches;
  });
  return passes;
}

uint64_t Fingerprint(graph::Graph graph) {
  graph.mutable_meshes().clear();
  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    graph.mutable_value(value).sharding.reset();
  }
  for (graph::NodeId node = 0; node < graph.num_nodes(); ++node) {
    graph.mutable_node(node).mesh = 0;
    graph.mutable_node(node).stage = -1;
    graph.mutable_node(node).attributes.Erase("per_use");
    graph.mutable_node(node).attributes.Erase("sub_batches");
    graph.mutable_node(node).attributes.Erase("recompute");
    graph.mutable_node(node).attributes.Erase("offload");
    graph.mutable_node(node).attributes.Erase("memory");
  }
  for (graph::Return& ret : graph.mutable_returns()) ret.sharding.reset();
  const std::string text = graph::PrintGraph(graph);
  return XXH64(text.data(), text.size(), 0);
}

namespace {

int NumStages(const graph::Graph& graph) {
  int num_stages = 1;
  for (const graph::Node& node : graph.nodes()) num_stages = std::max(num_stages, node.stage + 1);
  return num_stages;
}

// LowerOptions::placement.
absl::StatusOr<std::optional<StagePlacement>> PlaceStages(const graph::Graph& graph,
                                                          const Policy& policy,
                                                          const CompileOptions& options) {
  const int chunks = options.chunks_per_group;
  const int num_stages = NumStages(graph);
  if (options.placement.value_or(policy.needs().placement.value_or(Placement::kLoop)) ==
      Placement::kBidirectional) {
    if (num_stages % 2 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("policy '", std::string(policy.name()),
                       "' needs an even number of pipeline stages; there ",
                       num_stages == 1 ? "is " : "are ", num_stages));
    }
    if (chunks == 1) return StagePlacement{num_stages, 2, Placement::kBidirectional};
    return absl::InvalidArgumentError(
        absl::StrCat("policy '", std::string(policy.name()),
                     "' runs each stage on two groups of devices, as a chunk of each: the stages "
                     "cannot be cut into ",
                     chunks, " chunks a group besides"));
  }
  if (chunks == 1) return std::nullopt;  // CheckNeeds has the last word
  if (chunks < 1 || chunks > kMaxChunks || num_stages % chunks != 0) {
    return absl::InvalidArgumentError(absl::StrCat(num_stages, " stages cannot be run as ", chunks,
                                                   " chunks a group of devices"));
  }
  StagePlacement placement = PlacementOf(policy, num_stages / chunks, chunks);
  placement.placement = options.placement.value_or(placement.placement);
  return placement;
}

// The group of devices that runs a stage; in a bidirectional pipeline, in the first direction.
int GroupOfStage(const CompileOptions& options, const std::optional<StagePlacement>& placement,
                 int stage) {
  const bool has_chunks = placement.has_value() && !IsBidirectional(placement);
  const int group = has_chunks ? placement->GroupOf(stage) : stage;
  return options.device_groups.empty() ? group : options.device_groups[static_cast<size_t>(group)];
}

// Whether the device groups are a permutation of the pipeline's groups.
absl::Status CheckDeviceGroups(const graph::Graph& graph, const CompileOptions& options) {
  if (options.device_groups.empty()) return absl::OkStatus();
  const int num_groups = NumStages(graph) / std::max(options.chunks_per_group, 1);
  std::vector<int> sorted = options.device_groups;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> expected(static_cast<size_t>(num_groups));
  std::iota(expected.begin(), expected.end(), 0);
  if (sorted == expected && graph.meshes().size() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "device groups ", absl::StrJoin(options.device_groups, ", "), ": expected the numbers below ",
      num_groups, " once each, and stages that lie on one mesh"));
}

// The devices of each group as LowerToPlan numbers them: where they begin, and behind the last.
std::vector<uint32_t> FirstDevices(const graph::Graph& graph, const CompileOptions& options,
                                   const std::optional<StagePlacement>& placement) {
  const bool is_bidirectional = IsBidirectional(placement);
  const int num_groups = is_bidirectional
                             ? NumStages(graph)
                             : NumStages(graph) / std::max(options.chunks_per_group, 1);
  std::vector<int64_t> devices(static_cast<size_t>(num_groups), graph.meshes()[0].num_devices());
  for (const graph::Node& node : graph.nodes()) {
    const int group = GroupOfStage(options, placement, std::max(node.stage, 0));
    devices[static_cast<size_t>(group)] =
        graph.meshes()[static_cast<size_t>(node.mesh)].num_devices();
  }
  std::vector<uint32_t> first = {0};
  for (const int64_t count : devices) {
    first.push_back(first.back() + static_cast<uint32_t>(count / (is_bidirectional ? 2 : 1)));
  }
  return first;
}

// Whether the devices of any group that runs the stage fuse epilogues. Null if none does anywhere.
FusesStage StagesThatFuse(const CompileOptions& options,
                          const std::optional<StagePlacement>& placement) {
  if (options.fuses_epilogues == nullptr) return nullptr;
  return [&options, placement](const graph::Graph& graph, int stage) {
    const std::vector<uint32_t> first = FirstDevices(graph, options, placement);
    const auto fuses = [&](int stage_of_group) {
      const auto group = static_cast<size_t>(GroupOfStage(options, placement, stage_of_group));
      return options.fuses_epilogues(first[group], first[group + 1] - first[group]);
    };
    // The other direction runs it on the group at the other end.
    return fuses(stage) || (IsBidirectional(placement) && fuses(NumStages(graph) - 1 - stage));
  };
}

absl::StatusOr<StepEstimate> EstimateGraph(const graph::Graph& graph, const LowerOptions& lower,
                                           const CompileOptions& options) {
  WorkOptions work_options;
  work_options.num_groups = NumStages(graph) / std::max(options.chunks_per_group, 1);
  if (lower.placement.has_value()) work_options.placement = lower.placement->placement;
  work_options.device_groups = options.device_groups;
  work_options.send_costs = options.send_costs;
  ASSIGN_OR_RETURN(const ModelWork work, MeasureWork(graph, *options.machine, work_options));
  EstimateOptions estimate_options;
  estimate_options.policy = lower.policy;
  estimate_options.chunks_per_group = options.chunks_per_group;
  estimate_options.placement = lower.placement;
  estimate_options.device_groups = options.device_groups;
  estimate_options.split_weight_gradients = lower.split_weight_gradients;
  estimate_options.bucket_bytes = static_cast<double>(options.bucket_bytes);
  return EstimateStep(work, *options.machine, estimate_options);
}

// A plan for which there was no estimate, with orders for the times that it predicts. Most policies
// keep the orders that they have given for equal stages.
absl::Status OrderByPredictedTimes(const graph::OpRegistry& ops, const graph::Graph& graph,
                                   const CompileOptions& options, LowerOptions* lower,
                                   FoldedPlan* folded) {
  if (folded->is_folded()) return absl::OkStatus();
  const Plan& plan = folded->common;
  const StagePlacement placement =
      lower->placement.value_or(StagePlacement{static_cast<int>(plan.stages.size())});
  Pipeline pipeline = PipelineOfPlan(plan, placement, lower->device_groups);
  // A policy that has no orders for these times keeps those that it had for equal ones.
  const absl::StatusOr<PipelineOrders> planned = PlanPipeline(*lower->policy, pipeline);
  if (!planned.ok()) return absl::OkStatus();
  const PipelineOrders& orders = *planned;
  bool is_same = true;
  for (size_t g = 0; g < orders.size(); ++g) {
    if (!pipeline.ContextOf(static_cast<int>(g)).has_choices()) continue;
    const size_t stage =
        lower->device_groups.empty() ? g : static_cast<size_t>(lower->device_groups[g]);
    is_same = is_same && plan.stages[stage].order == orders[g];
  }
  if (is_same) return absl::OkStatus();
  lower->pipeline = std::move(pipeline);
  ASSIGN_OR_RETURN(*folded, LowerToPlan(ops, graph, *lower));
  return PredictPhases(ops, *options.machine, folded);
}

// BucketLimits::bytes_over.
std::function<int64_t(CollectiveKind, const std::vector<graph::AxisRef>&)> BucketBytes(
    const graph::Graph& graph, const CompileOptions& options) {
  const int num_groups = NumStages(graph) / std::max(options.chunks_per_group, 1);
  return [&mesh = graph.meshes()[0], &options, num_groups](
             CollectiveKind kind, const std::vector<graph::AxisRef>& axes) {
    const CommunicatingGroups groups = GroupsOf(*options.machine, mesh, kind, axes, num_groups);
    return static_cast<int64_t>(
        BestBucketBytes(*options.machine, groups, static_cast<double>(options.bucket_bytes)));
  };
}

}  // namespace

absl::StatusOr<FoldedPlan> CompileFolded(const graph::OpRegistry& ops, graph::Graph graph,
                                         const CompileOptions& options) {
  const Policy* policy = options.policies->Find(options.policy);
  if (policy == nullptr) {
    std::vector<std::string> names;
    for (std::string_view name : options.policies->Names()) names.emplace_back(name);
    return absl::InvalidArgumentError(absl::StrCat("no scheduling policy \"", options.policy,
                                                   "\"; there are ", absl::StrJoin(names, ", ")));
  }
  uint64_t fingerprint = Fingerprint(graph);
  if (IsHalf(options.precision)) fingerprint ^= static_cast<uint64_t>(options.precision);
  std::vector<std::string> return_names;
  for (const graph::Return& ret : graph.returns()) {
    return_names.push_back(graph.value(ret.value).name);
  }
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty()) graph.mutable_meshes().push_back({"m", {}});

  bool has_stages = false;
  for (const graph::Node& node : graph.nodes()) has_stages |= node.stage >= 0;
  for (graph::NodeId node = 0; !has_stages && node < graph.num_nodes(); ++node) {
    graph.mutable_node(node).stage = 0;
  }

  if (options.optimizer_on_host) {
    RETURN_IF_ERROR(CheckMovedOptimizer(*policy, options.chunks_per_group));
    if (!options.device_groups.empty()) {
      return absl::InvalidArgumentError(
          "optimizer=host: the stages are on devices in their order; leave device_groups empty");
    }
  }
  SendOptions sends;
  ASSIGN_OR_RETURN(sends.placement, PlaceStages(graph, *policy, options));
  sends.costs = options.send_costs;
  RETURN_IF_ERROR(CheckDeviceGroups(graph, options));
  RETURN_IF_ERROR(
      RunPasses(CompilePasses(ops, sends, options.precision, options.sub_batch_bytes,
                              StagesThatFuse(options, sends.placement), options.sums_in_f32,
                              options.optimizer_on_host, options.residuals_in_f32),
                options.passes, &graph));

  LowerOptions lower;
  lower.policy = policy;
  lower.placement = sends.placement;
  lower.device_groups = options.device_groups;
  lower.split_weight_gradients = options.split_weight_gradients || policy->needs().splits_backward;
  std::optional<StepEstimate> estimate;
  // Estimates are for stages with equally many devices, each on one group.
  const bool has_estimate =
      options.machine != nullptr && graph.meshes().size() == 1 && !IsBidirectional(lower.placement);
  if (has_estimate) {
    ASSIGN_OR_RETURN(estimate, EstimateGraph(graph, lower, options));
    if (options.estimate != nullptr) *options.estimate = *estimate;
    lower.pipeline = std::move(estimate->pipeline);
  }
  lower.kernels = options.kernels;
  lower.kernels_of = options.kernels_of;
  lower.buckets.bytes = options.bucket_bytes;
  if (has_estimate && options.bucket_bytes > 0) {
    lower.buckets.bytes_over = BucketBytes(graph, options);
  }
  lower.host_devices = options.host_devices;
  if (options.machine != nullptr) lower.collectives = options.machine->cluster.spec().collectives;
  lower.fold = options.fold;
  ASSIGN_OR_RETURN(FoldedPlan folded, LowerToPlan(ops, graph, lower));
  Plan& plan = folded.common;
  if (estimate.has_value()) plan.predicted_step_s = estimate->step_s;
  const bool has_machine =
      options.machine != nullptr && folded.num_devices() <= options.machine->cluster.num_devices();
  if (has_machine) RETURN_IF_ERROR(PredictPhases(ops, *options.machine, &folded));
  if (has_machine && !has_estimate) {
    RETURN_IF_ERROR(OrderByPredictedTimes(ops, graph, options, &lower, &folded));
  }
  plan.strategy = options.strategy;
  plan.settings = options.settings;
  plan.threads_per_device = options.threads_per_device;
  // Whatever redistribution came last, a result is called as the program calls it.
  for (size_t i = 0; i < return_names.size(); ++i) plan.fetches[i].name = return_names[i];
  plan.graph_fingerprint = fingerprint;
  if (options.verify) RETURN_IF_ERROR(VerifyFoldedPlan(folded, *options.policies).status());
  if (options.verify && has_machine && !has_estimate) {
    ASSIGN_OR_RETURN(const Simulation simulation,
                     SimulatePlan(folded, ops, *options.policies, *options.machine,
                                  {.most_observed = 1, .aggregates = true}));
    plan.predicted_step_s = simulation.step_s;
  }
  return folded;
}

absl::StatusOr<Plan> Compile(const graph::OpRegistry& ops, graph::Graph graph,
                             const CompileOptions& options) {
  ASSIGN_OR_RETURN(const FoldedPlan folded, CompileFolded(ops, std::move(graph), options));
  return ExpandPlan(folded);
}

}  // namespace penstock::planner
