#include "bench/model_kernels.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/kernel_timing.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/cost/kernel_cost.h"
#include "planner/policy/policy.h"
#include "planner/search/kernel_seconds.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock::bench {
namespace {

struct Size {
  int64_t width = 0;
  int64_t context = 0;
  int64_t batch = 0;
};

// Strategies have operators of their own, such as the parts of an attention that cp splits.
constexpr std::pair<std::string_view, std::string_view> kModels[] = {
    {"gpt", "dp=1"}, {"moe", "dp=1"},      {"mlp", "dp=1"},        {"gpt", "tp=2,sp=true"},
    {"gpt", "cp=2"}, {"moe", "dp=2,ep=2"}, {"gpt", "dp=2,zero=1"},
};
constexpr Size kSizes[] = {{32, 32, 2}, {64, 64, 4}, {128, 128, 8}, {512, 128, 4}};
// Of the kernels of an operator whose times by the peak rates differ by less than a factor of 2,
// so many are run, and the slowest counts: devices wait for those whose tiles have more to do.
constexpr int kMostAlike = 3;
constexpr KernelTiming kTiming = {.num_batches = 3, .batch_ns = 1'500'000};
// What takes less by the peak rates takes what a call takes, which says nothing of longer ones.
constexpr double kLeastUs = 1;

struct Alike {
  int count = 0;
  planner::SlowdownPoint slowest;
};

absl::StatusOr<planner::FoldedPlan> PlanModel(const graph::OpRegistry& ops,
                                              const graph::Model& model,
                                              std::string_view strategy_text, const Size& size) {
  graph::ModelConfig config = model.defaults;
  config.layers = 1;
  config.width = size.width;
  config.context = size.context;
  ASSIGN_OR_RETURN(graph::Graph forward,
                   graph::BuildModelGraph(ops, model, config, graph::ModelUse::kTrain, size.batch));
  ASSIGN_OR_RETURN(graph::Graph graph, graph::BuildTrainingGraph(ops, std::move(forward), {}));
  ASSIGN_OR_RETURN(const std::optional<planner::Strategy> parsed,
                   planner::ParseStrategy(strategy_text));
  const planner::Strategy& strategy = *parsed;
  RETURN_IF_ERROR(planner::ApplyStrategy(strategy, 1, model.tensor_splits, graph));
  RETURN_IF_ERROR(planner::AssignStages(strategy.num_stages(), graph));
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  planner::CompileOptions options;
  options.policies = &policies;
  options.kernels = kernels::TraitsOf(kernels, 1);
  options.fold = false;  // kernels of the tiles of all devices
  return planner::CompileFolded(ops, std::move(graph), options);
}

DType ComputeTypeOf(const planner::KernelPlan& spec) {
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (const planner::TilePlan& tile : spec.inputs) operands.push_back({tile.dtype, tile.shape});
  for (const planner::TilePlan& tile : spec.outputs) results.push_back({tile.dtype, tile.shape});
  return planner::KernelTimes::ComputeType(operands, results);
}

}  // namespace

absl::StatusOr<std::vector<planner::MeasuredKernel>> MeasureModelKernels(
    const planner::DeviceKind& core) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const graph::ModelRegistry models = graph::BuiltinModels();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  // By operator and dtype, then by the binary logarithm of the time that the peak rates allow.
  std::map<std::pair<std::string, DType>, std::map<int, Alike>> curves;
  for (const auto& [name, strategy] : kModels) {
    const graph::Model* const model = models.FindModel(name);
    if (model == nullptr) return absl::InternalError(StrCat("no model '", name, "'"));
    for (const Size& size : kSizes) {
      ASSIGN_OR_RETURN(const planner::FoldedPlan plan, PlanModel(ops, *model, strategy, size));
      for (const planner::KernelPlan& spec : plan.kernels) {
        if (ops.Find(spec.op) == nullptr || kernels.Find(spec.op) == nullptr) continue;
        if (spec.outputs.empty()) continue;
        const DType dtype = ComputeTypeOf(spec);
        const graph::OpCost cost = planner::KernelCost(ops, spec);
        const double us = 1e6 * planner::RooflineSeconds(core, dtype, cost.flops, cost.bytes);
        if (us <= 0) continue;
        Alike& alike = curves[{spec.op, dtype}][std::ilogb(us)];
        if (alike.count == kMostAlike) continue;
        ASSIGN_OR_RETURN(const double seconds, MeasureKernelSeconds(spec, kTiming));
        const double factor = 1e6 * seconds / us;
        if (alike.count == 0 || factor > alike.slowest.factor) alike.slowest = {us, factor};
        ++alike.count;
      }
    }
  }
  std::vector<planner::MeasuredKernel> measured;
  for (const auto& [kernel, points] : curves) {
    if (points.rbegin()->second.slowest.roofline_us < kLeastUs) continue;
    planner::MeasuredKernel& curve = measured.emplace_back();
    curve.op = kernel.first;
    curve.dtype = kernel.second;
    for (const auto& [logarithm, alike] : points) curve.slowdown.push_back(alike.slowest);
  }
  return measured;
}

}  // namespace penstock::bench
