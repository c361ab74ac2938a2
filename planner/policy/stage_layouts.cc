#include "planner/policy/stage_layouts.h"

#include <string_view>

#include "base/strings.h"
#include "planner/policy/pipeline.h"

namespace penstock::planner {
namespace {

class PolicyWithLayout : public Policy {
 public:
  PolicyWithLayout(const Policy& policy, const StageLayout& layout)
      : policy_(policy), layout_(layout) {}
  std::string_view name() const override { return policy_.name(); }
  PolicyNeeds needs() const override {
    PolicyNeeds needs = policy_.needs();
    needs.placement = layout_.placement;
    needs.min_chunks = layout_.num_chunks;
    needs.max_chunks = layout_.num_chunks;
    return needs;
  }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    return policy_.PlannedOrder(context);
  }
  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    return policy_.PlanOrders(pipeline);
  }
  int ActivationCredits(const StageContext& context) const override {
    return policy_.ActivationCredits(context);
  }
  std::unique_ptr<StageScheduler> CreateScheduler(const StageContext& context) const override {
    return policy_.CreateScheduler(context);
  }

 private:
  const Policy& policy_;
  const StageLayout layout_;
};

}  // namespace

std::vector<StageLayout> LayoutsToTry(int num_chunks) {
  // With one chunk, all placements are the same.
  if (num_chunks == 1) return {{1, Placement::kLoop}};
  if (num_chunks > 1) return {{num_chunks, Placement::kLoop}, {num_chunks, Placement::kVee}};
  return {{1, Placement::kLoop}, {2, Placement::kLoop}, {2, Placement::kVee}};
}

std::shared_ptr<const Policy> WithLayout(const Policy& policy, const StageLayout& layout) {
  return std::make_shared<PolicyWithLayout>(policy, layout);
}

std::string ScheduleName(const Policy& policy) {
  const PolicyNeeds needs = policy.needs();
  const bool has_placement =
      needs.chooses_layout && needs.placement.has_value() && needs.min_chunks > 1;
  return StrCat(policy.name(), has_placement ? StrCat(" (", Name(*needs.placement), ")") : "");
}

}  // namespace penstock::planner
