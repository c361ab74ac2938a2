// The policy "auto": the best orders that it finds for the times, links and memory of a pipeline.

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/strings.h"
#include "planner/policy/greedy_policy.h"
#include "planner/policy/improve_orders.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"

namespace penstock::planner::internal {
namespace {

// In simulations of the search: about a second.
constexpr int64_t kFirings = 120'000'000;
// Of the best orders, so many are improved.
constexpr size_t kMostStarts = 3;

struct Candidate {
  PipelineOrders orders;
  double cost = 0;
};

bool ForwardFirst(const ReadyPhase& a, const ReadyPhase& b) { return a.phase.kind < b.phase.kind; }

// B, then F, then W; of the later chunks first.
bool BackwardFirst(const ReadyPhase& a, const ReadyPhase& b) {
  const auto rank = [](const ReadyPhase& phase) {
    return phase.phase.kind == PhaseKind::kBackward  ? 0
           : phase.phase.kind == PhaseKind::kForward ? 1
                                                     : 2;
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return a.phase.chunk > b.phase.chunk;
}

// One micro-batch after another, which keeps the least.
PipelineOrders SerialOrders(const Pipeline& pipeline) {
  PipelineOrders orders(pipeline.num_groups);
  const bool is_bidirectional = pipeline.placement.placement == Placement::kBidirectional;
  for (int g = 0; g < pipeline.num_groups; ++g) {
    const StageContext context = pipeline.ContextOf(g);
    const auto add = [&](PhaseKind kind, int microbatch, int chunk) {
      if (context.has(kind, chunk)) orders[g].push_back({kind, microbatch, chunk});
    };
    const auto add_backward = [&](int microbatch, int chunk) {
      add(PhaseKind::kBackward, microbatch, chunk);
      add(PhaseKind::kWeight, microbatch, chunk);
    };
    for (int m = 0; m < pipeline.num_microbatches; ++m) {
      for (int c = 0; c < context.num_chunks(); ++c) {
        add(PhaseKind::kForward, m, c);
        if (is_bidirectional) add_backward(m, c);  // chunks are independent
      }
      for (int c = context.num_chunks() - 1; c >= 0 && !is_bidirectional; --c) add_backward(m, c);
    }
  }
  return orders;
}

// Collects the named policies' orders and greedy ones, and improves the best (improve_orders.h). So
// it is never worse than the best named policy that keeps within the limit of memory.
class BestOrder : public Policy {
 public:
  std::string_view name() const override { return "auto"; }
  PolicyNeeds needs() const override {
    return {.placement = std::nullopt, .splits_backward = true, .chooses_layout = true};
  }

  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    std::vector<Candidate> candidates;
    const auto add = [&](absl::StatusOr<PipelineOrders> orders) {
      if (!orders.ok()) return;
      const absl::StatusOr<Timeline> timeline = RunPipeline(pipeline, *orders);
      if (!timeline.ok() || !KeepsLimit(pipeline, *timeline)) return;
      candidates.push_back({*std::move(orders), CostOf(pipeline, *timeline)});
    };
    for (auto* make : {MakeGPipe, MakeOneForwardOneBackward, MakeEagerOneForwardOneBackward,
                       MakeLoopedBreadthFirst, MakeZeroBubbleH1, MakeZeroBubbleH2, MakeZeroBubble1p,
                       MakeZeroBubble2p, MakeZeroBubbleV, MakeVHalf, MakeVMin, MakeDualPipeV,
                       MakeChimera, MakeDualPipe}) {
      add(PlanPipeline(*make(), pipeline));
    }
    add(SerialOrders(pipeline));
    for (const PhaseBefore& before : {PhaseBefore(ForwardFirst), PhaseBefore(BackwardFirst)}) {
      for (const double limit : LimitsToTry(pipeline)) {
        add(PlanGreedily(pipeline, before, std::vector<double>(pipeline.num_groups, limit)));
      }
    }
    if (candidates.empty()) {
      return absl::ResourceExhaustedError(
          StrCat("no order keeps within ", pipeline.memory_limit,
                 " activations a group, not even one micro-batch at a time"));
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    if (pipeline.effort <= 0) return std::move(candidates[0].orders);
    if (candidates.size() > kMostStarts) candidates.resize(kMostStarts);
    const auto firings =
        static_cast<int64_t>(pipeline.effort * kFirings) / static_cast<int64_t>(candidates.size());
    Candidate best = candidates[0];
    for (const Candidate& start : candidates) {
      PipelineOrders improved = ImproveOrders(pipeline, start.orders, firings);
      const absl::StatusOr<Timeline> timeline = RunPipeline(pipeline, improved);
      if (!timeline.ok() || CostOf(pipeline, *timeline) >= best.cost) continue;
      best = {std::move(improved), CostOf(pipeline, *timeline)};
    }
    return std::move(best.orders);
  }

 private:
  static bool KeepsLimit(const Pipeline& pipeline, const Timeline& timeline) {
    if (pipeline.memory_limit <= 0) return true;
    return *std::max_element(timeline.peak_activations.begin(), timeline.peak_activations.end()) <=
           pipeline.memory_limit * (1 + 1e-9);
  }

  // Multiples of what 1F1B keeps on its first group, and the pipeline's own.
  static std::vector<double> LimitsToTry(const Pipeline& pipeline) {
    double largest = 0;
    for (const VirtualStage& stage : pipeline.stages) {
      largest = std::max(largest, stage.activation * pipeline.num_chunks());
    }
    std::vector<double> limits;
    for (const double factor : {1.0, 1.5, 2.0, 3.0}) {
      const double limit = factor * largest * pipeline.num_groups;
      if (pipeline.memory_limit <= 0 || limit < pipeline.memory_limit) limits.push_back(limit);
    }
    limits.push_back(pipeline.memory_limit);
    return limits;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeBestOrder() { return std::make_unique<BestOrder>(); }

}  // namespace penstock::planner::internal
