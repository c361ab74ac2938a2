// Policies for two pipelines in opposite directions over the same groups
// (Placement::kBidirectional). Each group holds two stages: one near the start of its pipeline and
// one near the end of the other, so the groups start together instead of one after the other.

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/policy/dual_pipe_order.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"
#include "planner/policy/present_phases.h"

namespace penstock::planner::internal {
namespace {

absl::Status CheckEvenGroups(const Pipeline& pipeline) {
  if (pipeline.num_groups % 2 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("two pipelines in opposite directions need an even number of stages; there are ",
             pipeline.num_groups));
}

// Chimera: Li and Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with
// Bidirectional Pipelines" (2021).
//
// Both pipelines follow 1F1B, in slots that fit an F or a B. With P groups, P/2 micro-batches of
// each pipeline are a unit, which takes 2P slots. At stage s of its pipeline, micro-batch m of a
// unit has
//   F in slot 2m + s,
//   B in slot 2m + 2P - 1 - s.
// A group has stages s and P - 1 - s, which differ in parity because P is even, so no slot is used
// twice. The next unit starts 2P slots later; its F fill the last slots that this one leaves idle
// (the paper's direct concatenation). The policy orders the phases by their slots; W follows its B.
//
// If B takes as long as F, P - 2 slots are idle, however many units there are. If it takes twice as
// long, a single unit takes P times F and 2P - 2 times B, and some time is lost between units.
// Groups keep P/2 + 1 activations at the ends and P in the middle.
//
// Example: 4 groups, 2 micro-batches a pipeline; a prime marks chunk 1, a dot an empty slot:
//   group 0: F0  .   F1  F0' B0' F1' B1' B0  .   B1
//   group 1: .   F0  F0' F1  F1' B0' B0  B1' B1  .
//   group 2: .   F0' F0  F1' F1  B0  B0' B1  B1' .
//   group 3: F0' .   F1' F0  B0  F1  B1  B0' .   B1'
class Chimera : public Policy {
 public:
  std::string_view name() const override { return "chimera"; }
  PolicyNeeds needs() const override {
    return {.placement = Placement::kBidirectional, .min_chunks = 2, .max_chunks = 2};
  }

  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    RETURN_IF_ERROR(CheckEvenGroups(pipeline));
    PipelineOrders orders;
    for (int g = 0; g < pipeline.num_groups; ++g) orders.push_back(OrderOf(pipeline, g));
    return orders;
  }

 private:
  struct Slot {
    int64_t number = 0;
    PhaseChoice phase;
  };

  static std::vector<PhaseChoice> OrderOf(const Pipeline& pipeline, int group) {
    const int num_groups = pipeline.num_groups;
    const int unit_size = num_groups / 2;
    std::vector<Slot> slots;
    for (int chunk = 0; chunk < 2; ++chunk) {
      const int stage = chunk == 0 ? group : num_groups - 1 - group;  // of its pipeline
      for (int m = 0; m < pipeline.num_microbatches; ++m) {
        const int64_t unit_begin = int64_t{2} * num_groups * (m / unit_size);
        const int64_t entry = unit_begin + 2 * (m % unit_size);
        slots.push_back({entry + stage, {PhaseKind::kForward, m, chunk}});
        slots.push_back({entry + 2 * num_groups - 1 - stage, {PhaseKind::kBackward, m, chunk}});
      }
    }
    std::sort(slots.begin(), slots.end(),
              [](const Slot& a, const Slot& b) { return a.number < b.number; });

    std::vector<PhaseChoice> order;
    for (const auto& [number, phase] : slots) {
      order.push_back(phase);
      if (phase.kind != PhaseKind::kBackward) continue;
      order.push_back({PhaseKind::kWeight, phase.microbatch, phase.chunk});
    }
    return PresentPhases(pipeline.ContextOf(group), std::move(order));
  }
};

// DualPipe: DualPipeOrder (dual_pipe_order.h) from both ends of the pipeline to its middle. The
// paired F and B of its steady state run one after the other here.
class DualPipe : public Policy {
 public:
  std::string_view name() const override { return "dualpipe"; }
  PolicyNeeds needs() const override {
    return {.placement = Placement::kBidirectional,
            .splits_backward = true,
            .min_chunks = 2,
            .max_chunks = 2,
            .pairs_phases = true};
  }

  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    RETURN_IF_ERROR(CheckEvenGroups(pipeline));
    PipelineOrders orders;
    for (int g = 0; g < pipeline.num_groups; ++g) {
      const bool is_nearer_last = g >= pipeline.num_groups / 2;
      const int position = is_nearer_last ? pipeline.num_groups - 1 - g : g;
      std::vector<PhaseChoice> order =
          DualPipeOrder(position, pipeline.num_groups / 2, pipeline.num_microbatches);
      // At the last group, the micro-batches of chunk 1 enter.
      if (is_nearer_last) {
        for (PhaseChoice& phase : order) phase.chunk = 1 - phase.chunk;
      }
      orders.push_back(PresentPhases(pipeline.ContextOf(g), std::move(order)));
    }
    return orders;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeChimera() { return std::make_unique<Chimera>(); }
std::unique_ptr<const Policy> MakeDualPipe() { return std::make_unique<DualPipe>(); }

}  // namespace penstock::planner::internal
