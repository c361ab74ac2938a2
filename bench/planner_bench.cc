#include "bench/planner_bench.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/builder.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/plan/plan_io.h"
#include "planner/plan/verify_folded_plan.h"
#include "planner/policy/policy.h"
#include "planner/sharding/propagate.h"
#include "planner/strategy/stages.h"

namespace penstock::bench {
namespace {

double SecondsSince(const SteadyClock& clock, int64_t begin_ns) {
  return 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
}

// x, then pairs of a product with one of two weights and a sum with the value before it.
absl::StatusOr<graph::Graph> Chain(const graph::OpRegistry& ops, int64_t num_nodes) {
  graph::Graph graph("chain");
  graph::GraphBuilder builder(ops, graph);
  const TensorType square = {DType::kF32, {64, 64}};
  graph::ValueId value = builder.Declare("input", "x", square);
  const graph::ValueId column = builder.Declare("parameter", "column", square);
  const graph::ValueId row = builder.Declare("parameter", "row", square);
  while (graph.num_nodes() + 1 < num_nodes && builder.status().ok()) {
    const graph::ValueId product = builder.Add("matmul", {value, column});
    const graph::ValueId back = builder.Add("matmul", {product, row});
    value = builder.Add("add", {value, back});
  }
  RETURN_IF_ERROR(builder.status());
  graph.mutable_returns().push_back({value, std::nullopt});

  graph::Mesh mesh = {"m", {{"dp", 4, false}, {"tp", 2, false}}};
  const auto split = [&](graph::ValueId id, int dim, int axis) {
    graph::Sharding sharding = graph::Sharding::Replicated(2);
    sharding.dims[dim].axes = {graph::WholeAxis(mesh, axis)};
    graph.mutable_value(id).sharding = std::move(sharding);
  };
  split(0, 0, 0);
  split(column, 1, 1);
  split(row, 0, 1);
  graph.mutable_meshes().push_back(std::move(mesh));
  return graph;
}

}  // namespace

absl::StatusOr<double> MeasurePropagation(int64_t num_nodes) {
  const SteadyClock clock;
  const graph::OpRegistry ops = graph::BuiltinOps();
  ASSIGN_OR_RETURN(const graph::Graph chain, Chain(ops, num_nodes));
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 3; ++round) {
    graph::Graph graph = chain;
    const int64_t begin_ns = clock.NowNs();
    RETURN_IF_ERROR(planner::Propagate(planner::PropagationLevel::kUserPriority, &graph));
    best = std::min(best, SecondsSince(clock, begin_ns));
  }
  return best;
}

absl::StatusOr<PlanningFigures> MeasurePlanning(const PlanningCase& planning) {
  const SteadyClock clock;
  const graph::OpRegistry ops = graph::BuiltinOps();
  const graph::ModelRegistry models = graph::BuiltinModels();
  const graph::Preset* preset = models.FindPreset(planning.preset);
  if (preset == nullptr) {
    return absl::NotFoundError(StrCat("no preset '", planning.preset, "'"));
  }
  const graph::Model* model = models.FindModel(preset->model);
  PlanningFigures figures;
  int64_t begin_ns = clock.NowNs();
  ASSIGN_OR_RETURN(
      graph::Graph forward,
      graph::BuildModelGraph(ops, *model, preset->config, graph::ModelUse::kTrain, planning.batch));
  ASSIGN_OR_RETURN(graph::Graph graph, graph::BuildTrainingGraph(ops, std::move(forward), {}));
  figures.build_s = SecondsSince(clock, begin_ns);

  begin_ns = clock.NowNs();
  RETURN_IF_ERROR(planner::ApplyStrategy(planning.strategy, planning.microbatches,
                                         model->tensor_splits, graph));
  RETURN_IF_ERROR(planner::AssignStages(planning.strategy.num_stages(), graph));
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  planner::CompileOptions options;
  options.policies = &policies;
  options.kernels = kernels::TraitsOf(kernels, 1);
  options.chunks_per_group = static_cast<int>(planning.strategy.vpp);
  ASSIGN_OR_RETURN(const planner::FoldedPlan plan,
                   planner::CompileFolded(ops, std::move(graph), options));
  figures.compile_s = SecondsSince(clock, begin_ns);
  ASSIGN_OR_RETURN(const std::string bytes, planner::PlanToBytes(plan));
  figures.file_bytes = bytes.size();
  figures.actors = planner::Count(plan).actors;
  ASSIGN_OR_RETURN(const planner::PlanVerification verification,
                   planner::VerifyFoldedPlan(plan, policies));
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    const auto arena = static_cast<double>(plan.programs[p].arena_bytes);
    const auto live = static_cast<double>(verification.peak_live_bytes[p]);
    figures.arena_over_live = std::max(figures.arena_over_live, arena / live);
  }
  return figures;
}

}  // namespace penstock::bench
