// V-shaped schedules that keep a half or a third of what 1F1B keeps: Qi et al., "Pipeline
// Parallelism with Controllable Memory" (2024).

#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/policy/pattern_schedule.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"
#include "planner/policy/present_phases.h"

namespace penstock::planner::internal {
namespace {

// v-min and v-half order the phases by a pattern (pattern_schedule.h), which decides for how many
// slots a group keeps a micro-batch. With P groups, group g keeps it from F to B
//   v-min    4P - 1 - 2g slots in chunk 0 and 1 + 2g in chunk 1,
//   v-half   6P - 2 - 3g slots in chunk 0 and 1 + 3g in chunk 1.
// The sums are the same for all groups: 4P and 6P - 1. As a micro-batch starts every six slots, a
// group keeps about 4P/6 or 6P/6 activations of a chunk: a third or a half of the 2P that 1F1B
// keeps on its first group. Including the time from B to W, it keeps at most (P + 4) / 3 or
// (P + 2) / 2 activations of both chunks, rounded down.
//
// According to the authors, v-min has no bubble in the steady state if F, B and W take the same
// time, and v-half if W + 2B >= 2F and W + 2F >= 2B. Both have one in the warm-up and cool-down.
//
// The orders, and so the peaks, depend only on the numbers of groups and micro-batches, not on
// times, links or Pipeline::memory_limit.
class ControllableMemory : public Policy {
 public:
  using PatternOf = Pattern (*)(int group, int num_groups);
  ControllableMemory(std::string_view name, PatternOf pattern_of)
      : name_(name), pattern_of_(pattern_of) {}
  std::string_view name() const override { return name_; }
  PolicyNeeds needs() const override {
    return {
        .placement = Placement::kVee, .splits_backward = true, .min_chunks = 2, .max_chunks = 2};
  }

  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    std::vector<Pattern> patterns;
    for (int g = 0; g < pipeline.num_groups; ++g) {
      patterns.push_back(pattern_of_(g, pipeline.num_groups));
    }
    PipelineOrders orders = OrdersOfPattern(patterns, pipeline.num_microbatches);
    for (int g = 0; g < pipeline.num_groups; ++g) {
      orders[g] = PresentPhases(pipeline.ContextOf(g), std::move(orders[g]));
    }
    return orders;
  }

 private:
  const std::string_view name_;
  const PatternOf pattern_of_;
};

// All passes reach the next group in the next slot. For some P, the slots of a group differ modulo
// six only if the backward passes start later.
Pattern MinPattern(int group, int num_groups) {
  const int extra = num_groups % 3 == 0 ? 2 : 0;
  return {group, 2 * num_groups - 1 - group, 2 * num_groups + extra + group,
          4 * num_groups + extra - 1 - group};
}

// The passes toward the last group take two slots a group.
Pattern HalfPattern(int group, int num_groups) {
  const int extra = num_groups % 2 == 0 ? 3 : 0;
  return {2 * group, 3 * num_groups - 2 - group, 3 * num_groups + extra - 1 + 2 * group,
          6 * num_groups + extra - 2 - group};
}

}  // namespace

std::unique_ptr<const Policy> MakeVHalf() {
  return std::make_unique<ControllableMemory>("v-half", HalfPattern);
}
std::unique_ptr<const Policy> MakeVMin() {
  return std::make_unique<ControllableMemory>("v-min", MinPattern);
}

}  // namespace penstock::planner::internal
