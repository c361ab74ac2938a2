// The policies that come with the planner.

#include <algorithm>

#include "absl/status/status.h"

#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

bool Has(const StageContext& context, PhaseKind kind) {
  return context.has_kind[static_cast<int>(kind)];
}

// Forwards run `lead` micro-batches ahead of the backwards; a weight gradient follows its backward.
// lead = 2, M = 3: F0 F1 B0 F2 B1 B2.
std::vector<PhaseChoice> OrderWithLead(const StageContext& context, int lead) {
  std::vector<PhaseChoice> order;
  const int num_microbatches = context.num_microbatches;
  for (int i = 0; i < num_microbatches + lead - 1; ++i) {
    const int done = i - lead + 1;
    if (i < num_microbatches && Has(context, PhaseKind::kForward)) {
      order.push_back({PhaseKind::kForward, i});
    }
    if (done < 0) continue;
    if (Has(context, PhaseKind::kBackward)) order.push_back({PhaseKind::kBackward, done});
    if (Has(context, PhaseKind::kWeight)) order.push_back({PhaseKind::kWeight, done});
  }
  return order;
}

class GPipe : public Policy {
 public:
  std::string_view name() const override { return "gpipe"; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    return OrderWithLead(context, std::max(context.num_microbatches, 1));
  }
};

class OneForwardOneBackward : public Policy {
 public:
  std::string_view name() const override { return "1f1b"; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    const int lead = std::min(context.num_stages - context.stage, context.num_microbatches);
    return OrderWithLead(context, std::max(lead, 1));
  }
};

}  // namespace

PolicyRegistry BuiltinPolicies() {
  PolicyRegistry registry;
  // Names are distinct, so adding cannot fail.
  registry.Add(std::make_unique<GPipe>()).IgnoreError();
  registry.Add(std::make_unique<OneForwardOneBackward>()).IgnoreError();
  return registry;
}

}  // namespace penstock::planner
