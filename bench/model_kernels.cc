#include "bench/model_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/types/span.h"

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

struct Case {
  std::string_view model;
  std::string_view strategy;
  absl::Span<const Size> sizes;
};

constexpr Size kSizes[] = {{32, 32, 2}, {64, 64, 4}, {128, 128, 8}, {512, 128, 4}};
// Products of few rows and wide weights.
constexpr Size kWideSizes[] = {{256, 32, 8}, {1024, 32, 4}, {1024, 32, 16}};
// Strategies have operators of their own, such as the parts of an attention that cp splits.
constexpr Case kCases[] = {
    {"gpt", "dp=1", kSizes},         {"moe", "dp=1", kSizes},     {"mlp", "dp=1", kSizes},
    {"gpt", "tp=2,sp=true", kSizes}, {"gpt", "cp=2", kSizes},     {"moe", "dp=2,ep=2", kSizes},
    {"gpt", "dp=2,zero=1", kSizes},  {"mlp", "dp=1", kWideSizes},
};
// Of the kernels of an operator whose times by the peak rates differ by less than a factor of 2,
// so many are run, and the median counts.
constexpr size_t kMostAlike = 3;
// Of these, the slowest counts: what they take depends on where their tiles lie in the sequence,
// and devices wait for each other.
constexpr std::string_view kMasked[] = {"block_attention", "block_attention_grad"};
constexpr KernelTiming kTiming = {.num_batches = 3, .batch_ns = 1'500'000};
// What takes less by the peak rates takes what a call takes, which says nothing of longer ones.
constexpr double kLeastUs = 1;

// `alike`: not empty.
planner::SlowdownPoint Typical(std::string_view op, std::vector<planner::SlowdownPoint> alike) {
  std::sort(alike.begin(), alike.end(),
            [](const planner::SlowdownPoint& a, const planner::SlowdownPoint& b) {
              return a.factor < b.factor;
            });
  const bool is_masked = std::find(std::begin(kMasked), std::end(kMasked), op) != std::end(kMasked);
  return is_masked ? alike.back() : alike[alike.size() / 2];
}

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
  // By operator, dtype and bound, then by the binary logarithm of the time that the peak rates
  // allow.
  using Key = std::tuple<std::string, DType, planner::RooflineBound>;
  std::map<Key, std::map<int, std::vector<planner::SlowdownPoint>>> curves;
  for (const Case& c : kCases) {
    const graph::Model* const model = models.FindModel(c.model);
    if (model == nullptr) return absl::InternalError(StrCat("no model '", c.model, "'"));
    for (const Size& size : c.sizes) {
      ASSIGN_OR_RETURN(const planner::FoldedPlan plan, PlanModel(ops, *model, c.strategy, size));
      for (const planner::KernelPlan& spec : plan.kernels) {
        if (ops.Find(spec.op) == nullptr || kernels.Find(spec.op) == nullptr) continue;
        if (spec.outputs.empty()) continue;
        const DType dtype = ComputeTypeOf(spec);
        const graph::OpCost cost = planner::KernelCost(ops, spec);
        const planner::Roofline roofline = planner::RooflineOf(core, dtype, cost.flops, cost.bytes);
        const double us = 1e6 * roofline.seconds;
        if (us <= 0) continue;
        std::vector<planner::SlowdownPoint>& alike =
            curves[{spec.op, dtype, roofline.bound}][std::ilogb(us)];
        if (alike.size() == kMostAlike) continue;
        ASSIGN_OR_RETURN(const double seconds, MeasureKernelSeconds(spec, kTiming));
        alike.push_back({us, 1e6 * seconds / us});
      }
    }
  }
  std::vector<planner::MeasuredKernel> measured;
  for (const auto& [kernel, points] : curves) {
    if (points.rbegin()->second.front().roofline_us < kLeastUs) continue;
    planner::MeasuredKernel& curve = measured.emplace_back();
    std::tie(curve.op, curve.dtype, curve.bound) = kernel;
    for (const auto& [logarithm, alike] : points) {
      curve.slowdown.push_back(Typical(curve.op, alike));
    }
  }
  return measured;
}

}  // namespace penstock::bench
