// Zero-bubble policies for a V-shaped placement: zb-v and DualPipeV.

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/strings.h"
#include "planner/policy/dual_pipe_order.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"
#include "planner/policy/present_phases.h"
#include "planner/policy/zero_bubble_v_plan.h"

namespace penstock::planner::internal {
namespace {

constexpr double kRounding = 1e-9;  // relative; less is a rounding error

PolicyNeeds VeeNeeds() {
  return {.placement = Placement::kVee, .splits_backward = true, .min_chunks = 2, .max_chunks = 2};
}

// zb-v: Qi et al., "Zero Bubble Pipeline Parallelism" (2023), the V schedule. With enough
// micro-batches and equal times of F, B and W, it has no bubble, and keeps no more than 1F1B does
// on its first group.
//
// zero_bubble_v_plan.h constructs the orders. It is not clear beforehand whether a W should fill a
// wait that is shorter, so the policy tries four variants. It plans each again, with the time that
// groups had to spare in the plan before, as long as that helps. The plan with the shortest span
// wins.
//
// A group may keep the activations of num_groups micro-batches in both its chunks, or
// Pipeline::memory_limit if that is less. As the authors do, the policy assumes that B frees half
// of an activation and W the rest. Timeline::peak_activations counts all of it until W ends, and
// can be larger than num_groups if F, B and W take different times. If it is larger than
// Pipeline::memory_limit, the policy plans again as if B freed nothing.
//
// Example: 2 groups, 3 micro-batches; a prime marks chunk 1:
//   group 0: F0 F1 F2 F0' B0' W0' F1' B1' W1' B0 W0 F2' B2' B1 W2' B2 W1 W2
//   group 1: F0 F0' F1 F1' B0' W0' F2 B0 W0 F2' B1' B1 B2' B2 W1' W1 W2' W2
class ZeroBubbleV : public Policy {
 public:
  std::string_view name() const override { return "zb-v"; }
  PolicyNeeds needs() const override { return VeeNeeds(); }

  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    ZeroBubbleVOptions options;
    for (int g = 0; g < pipeline.num_groups; ++g) {
      const double activation = pipeline.stages[pipeline.StageOf(g, 0)].activation +
                                pipeline.stages[pipeline.StageOf(g, 1)].activation;
      if (Exceeds(activation, pipeline.memory_limit)) {
        return absl::ResourceExhaustedError(StrCat("no order keeps within ", pipeline.memory_limit,
                                                   " activations a group: group ", g, " keeps ",
                                                   activation, " of one micro-batch"));
      }
      const double limit = activation * pipeline.num_groups;
      options.memory_limits.push_back(
          pipeline.memory_limit > 0 ? std::min(limit, pipeline.memory_limit) : limit);
    }
    for (const double share_freed_by_b : {0.5, 0.0}) {
      for (const bool keeps_room : {false, true}) {
        options.share_freed_by_b = share_freed_by_b;
        options.keeps_room = keeps_room;
        std::optional<PipelineOrders> orders = BestOrders(pipeline, options);
        if (orders.has_value()) return *std::move(orders);
      }
    }
    return absl::ResourceExhaustedError(
        StrCat("no order keeps within ", pipeline.memory_limit, " activations a group"));
  }

 private:
  // Nothing if no plan keeps within memory.
  static std::optional<PipelineOrders> BestOrders(const Pipeline& pipeline,
                                                  ZeroBubbleVOptions options) {
    std::optional<PipelineOrders> best;
    double best_span_s = std::numeric_limits<double>::infinity();
    for (const bool fills_for_b : {true, false}) {
      for (const bool fills_for_f : {true, false}) {
        options.fills_short_waits_for_b = fills_for_b;
        options.fills_short_waits_for_f = fills_for_f;
        options.may_wait_s.clear();
        double last_span_s = std::numeric_limits<double>::infinity();
        while (std::optional<ZeroBubbleVPlan> plan = PlanZeroBubbleV(pipeline, options)) {
          const double span_s = plan->span_s;
          if (IsLess(span_s, best_span_s) && KeepsLimit(pipeline, *plan)) {
            best = std::move(plan->orders);
            best_span_s = span_s;
          }
          if (!IsLess(span_s, last_span_s)) break;
          last_span_s = span_s;
          options.may_wait_s = std::move(plan->slack_s);
        }
      }
    }
    return best;
  }

  static bool IsLess(double a, double b) { return a < b * (1 - kRounding); }
  static bool Exceeds(double activations, double limit) {
    return limit > 0 && activations > limit * (1 + kRounding);
  }
  static bool KeepsLimit(const Pipeline& pipeline, const ZeroBubbleVPlan& plan) {
    return std::none_of(plan.peak_activations.begin(), plan.peak_activations.end(),
                        [&](double peak) { return Exceeds(peak, pipeline.memory_limit); });
  }
};

// DualPipeV: DualPipe cut in half at its middle, as Sea AI Lab proposed ("Cut-in-half", 2025) and
// DeepSeek published (https://github.com/deepseek-ai/DualPipe). The micro-batches that meet those
// of chunk 0 on a group come back in chunk 1, instead of entering at the other end. Its order is
// DualPipeOrder (dual_pipe_order.h).
class DualPipeV : public Policy {
 public:
  std::string_view name() const override { return "dualpipev"; }
  PolicyNeeds needs() const override {
    PolicyNeeds needs = VeeNeeds();
    needs.pairs_phases = true;
    return needs;
  }

  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    PipelineOrders orders;
    for (int g = 0; g < pipeline.num_groups; ++g) {
      orders.push_back(PresentPhases(
          pipeline.ContextOf(g), DualPipeOrder(g, pipeline.num_groups, pipeline.num_microbatches)));
    }
    return orders;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeZeroBubbleV() { return std::make_unique<ZeroBubbleV>(); }
std::unique_ptr<const Policy> MakeDualPipeV() { return std::make_unique<DualPipeV>(); }

}  // namespace penstock::planner::internal
