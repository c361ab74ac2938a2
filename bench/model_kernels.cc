#include "bench/model_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/types/span.h"

#include "actors/session/session.h"
#include "actors/trace/computation_times.h"
#include "base/device.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"
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
  std::string_view strategy;  // empty: data parallel over all cores, each with a batch
  int64_t num_microbatches = 1;
  absl::Span<const Size> sizes;
  DType precision = DType::kF32;  // of 16 bits: mixed precision
};

constexpr Size kSizes[] = {{32, 32, 2}, {64, 64, 4}, {128, 128, 8}, {512, 128, 4}};
// Products of few rows, and weights that no cache holds.
constexpr Size kWideSizes[] = {{256, 32, 8}, {1024, 32, 16}, {1024, 32, 64}};
// Strategies have operators of their own, such as the parts of an attention that cp splits.
constexpr Case kCases[] = {
    {"gpt", "", 1, kSizes},
    {"moe", "", 1, kSizes},
    {"mlp", "", 1, kSizes},
    {"gpt", "tp=2,sp=true", 1, kSizes},
    {"gpt", "cp=2", 1, kSizes},
    {"moe", "dp=2,ep=2", 1, kSizes},
    {"gpt", "dp=2,zero=1", 1, kSizes},
    {"mlp", "", 1, kWideSizes},
    {"mlp", "", 4, kWideSizes},
    {"gpt", "", 1, kSizes, DType::kBF16},
    {"mlp", "", 1, kWideSizes, DType::kBF16},
    {"gpt", "", 1, kSizes, DType::kF16},
};
// Of these, the slowest counts: what they take depends on where their tiles lie in the sequence,
// and devices wait for each other.
constexpr std::string_view kMasked[] = {"block_attention", "block_attention_grad"};
// Enough to share caches and the rate of the memory.
constexpr int64_t kMostCores = 8;
// Steps of a model until they took so long; the first does not count.
constexpr double kLeastSeconds = 0.15;
constexpr int kLeastSteps = 4;
constexpr int kMostSteps = 100;
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

absl::StatusOr<planner::Plan> PlanModel(const graph::OpRegistry& ops, const graph::Model& model,
                                        const Case& c, const Size& size, int64_t num_cores,
                                        const kernels::KernelRegistry& kernels) {
  const bool is_on_all_cores = c.strategy.empty();
  const int64_t batch = is_on_all_cores ? size.batch * num_cores : size.batch;
  graph::ModelConfig config = model.defaults;
  config.layers = 1;
  config.width = size.width;
  config.context = size.context;
  ASSIGN_OR_RETURN(graph::Graph forward,
                   graph::BuildModelGraph(ops, model, config, graph::ModelUse::kTrain, batch));
  ASSIGN_OR_RETURN(graph::Graph graph, graph::BuildTrainingGraph(ops, std::move(forward), {}));
  ASSIGN_OR_RETURN(
      const std::optional<planner::Strategy> parsed,
      planner::ParseStrategy(is_on_all_cores ? StrCat("dp=", num_cores) : std::string(c.strategy)));
  const planner::Strategy& strategy = *parsed;
  RETURN_IF_ERROR(planner::ApplyStrategy(strategy, c.num_microbatches, model.tensor_splits, graph));
  RETURN_IF_ERROR(planner::AssignStages(strategy.num_stages(), graph));
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  planner::CompileOptions options;
  options.policies = &policies;
  options.kernels = kernels::TraitsOf(kernels, 1);
  options.precision = c.precision;
  return planner::Compile(ops, std::move(graph), options);
}

// Bytes of text: all numbers below 128.
actors::Feeds FeedsOf(const planner::Plan& plan) {
  actors::Feeds feeds;
  for (const planner::FeedPlan& feed : plan.feeds) {
    Tensor tensor(feed.type);
    if (feed.type.dtype == DType::kI32) {
      for (int64_t i = 0; i < tensor.num_elements(); ++i) {
        tensor.As<int32_t>()[i] = static_cast<int32_t>(RandomWord({1, 0, 0}, i) % 128);
      }
    }
    feeds[feed.name] = std::move(tensor);
  }
  return feeds;
}

// Of each device, of each actor: what its kernel takes in a step.
absl::StatusOr<std::vector<std::vector<double>>> RunModel(const planner::Plan& plan,
                                                          const kernels::KernelRegistry& kernels) {
  actors::SessionOptions options;
  options.kernels = &kernels;
  options.trace = true;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(plan, options));
  const actors::Feeds feeds = FeedsOf(plan);
  RETURN_IF_ERROR(session->Run(feeds).status());
  session->TakeTrace();
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  for (int step = 0; step < kMostSteps; ++step) {
    const double seconds = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
    if (step >= kLeastSteps && seconds >= kLeastSeconds) break;
    RETURN_IF_ERROR(session->Run(feeds).status());
  }
  return actors::MedianComputeSeconds(plan, session->TakeTrace());
}

DType ComputeTypeOf(const planner::KernelPlan& spec) {
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (const planner::TilePlan& tile : spec.inputs) operands.push_back({tile.dtype, tile.shape});
  for (const planner::TilePlan& tile : spec.outputs) results.push_back({tile.dtype, tile.shape});
  return planner::KernelTimes::ComputeType(operands, results);
}

// By operator, dtype and bound, then by the binary logarithm of the time that the peak rates allow.
using Curves = std::map<std::tuple<std::string, DType, planner::RooflineBound>,
                        std::map<int, std::vector<planner::SlowdownPoint>>>;

void AddPoints(const graph::OpRegistry& ops, const planner::DeviceKind& core,
               const planner::Plan& plan, const std::vector<std::vector<double>>& seconds,
               Curves* curves) {
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    for (size_t a = 0; a < plan.devices[d].actors.size(); ++a) {
      const planner::ActorPlan& actor = plan.devices[d].actors[a];
      if (actor.kind != planner::ActorKind::kKernel || seconds[d][a] <= 0) continue;
      const planner::KernelPlan& spec = plan.kernels[actor.kernel];
      if (ops.Find(spec.op) == nullptr || spec.outputs.empty()) continue;
      const DType dtype = ComputeTypeOf(spec);
      const graph::OpCost cost = planner::KernelCost(ops, spec);
      const planner::Roofline roofline = planner::RooflineOf(core, dtype, cost.flops, cost.bytes);
      const double us = 1e6 * roofline.seconds;
      if (us <= 0) continue;
      (*curves)[{spec.op, dtype, roofline.bound}][std::ilogb(us)].push_back(
          {us, 1e6 * seconds[d][a] / us});
    }
  }
}

}  // namespace

int NumModelRuns() {
  size_t count = 0;
  for (const Case& c : kCases) count += c.sizes.size();
  return static_cast<int>(count);
}

absl::Status ModelKernels::Measure(int64_t num_cores,
                                   const std::function<void(std::string_view name)>& on_model) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const graph::ModelRegistry models = graph::BuiltinModels();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  size_t r = 0;
  for (const Case& c : kCases) {
    const graph::Model* const model = models.FindModel(c.model);
    if (model == nullptr) return absl::InternalError(StrCat("no model '", c.model, "'"));
    for (const Size& size : c.sizes) {
      if (on_model) on_model(c.model);
      if (r == runs_.size()) {
        ASSIGN_OR_RETURN(planner::Plan plan,
                         PlanModel(ops, *model, c, size, std::min(num_cores, kMostCores), kernels));
        runs_.push_back({std::move(plan), {}});
      }
      ModelRun& run = runs_[r++];
      ASSIGN_OR_RETURN(auto seconds, RunModel(run.plan, kernels));
      if (run.seconds.empty()) run.seconds = seconds;
      for (size_t d = 0; d < seconds.size(); ++d) {
        for (size_t a = 0; a < seconds[d].size(); ++a) {
          run.seconds[d][a] = std::min(run.seconds[d][a], seconds[d][a]);
        }
      }
    }
  }
  return absl::OkStatus();
}

std::vector<planner::MeasuredKernel> ModelKernels::SlowdownsOn(
    const planner::DeviceKind& core) const {
  const graph::OpRegistry ops = graph::BuiltinOps();
  Curves curves;
  for (const ModelRun& run : runs_) AddPoints(ops, core, run.plan, run.seconds, &curves);
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
