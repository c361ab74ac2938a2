#include "planner/plan/verify_plan.h"

#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/access_order.h"
#include "planner/plan/check_memory.h"
#include "planner/plan/check_references.h"
#include "planner/plan/check_structure.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/plan/show_plan.h"

namespace penstock::planner {
namespace {

absl::Status OutOfOrder(const Plan& plan, uint32_t d, uint32_t before, uint32_t after) {
  const std::vector<ActorPlan>& actors = plan.devices[d].actors;
  return absl::InvalidArgumentError(
      StrCat(DescribeActor(plan, d, after), " starts collective ", actors[after].target, " after ",
             DescribeActor(plan, d, before), " has started collective ", actors[before].target,
             " in the same lane, against the plan's order of collectives"));
}

}  // namespace

// In the compute lane phases alternate as the policy says, the same on all devices of a stage, and
// the order is that within each phase. In the per-step lane it goes from phase to phase.
absl::Status CheckCollectiveOrder(const Plan& plan) {
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    const DevicePlan& device = plan.devices[d];
    uint32_t last_per_step = kNone;
    for (const PhasePlan& phase : device.phases) {
      if (phase.lane == Lane::kFloating) continue;
      uint32_t last = phase.lane == Lane::kPerStep ? last_per_step : kNone;
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        const ActorPlan& actor = device.actors[a];
        if (actor.kind != ActorKind::kCollective) continue;
        if (last != kNone && device.actors[last].target >= actor.target) {
          return OutOfOrder(plan, d, last, a);
        }
        last = a;
      }
      if (phase.lane == Lane::kPerStep) last_per_step = last;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PlanVerification> VerifyPlan(const Plan& plan, const PolicyRegistry& policies) {
  RETURN_IF_ERROR(CheckReferences(plan));
  RETURN_IF_ERROR(CheckStructure(plan));
  ASSIGN_OR_RETURN(const PhaseWorkspaceBytes workspace_bytes, CheckMemory(plan));
  RETURN_IF_ERROR(CheckAccessOrder(plan));
  ASSIGN_OR_RETURN(FiringResult result,
                   FirePlan(plan, policies, FindRendezvous(plan), workspace_bytes));
  RETURN_IF_ERROR(CheckCollectiveOrder(plan));
  return PlanVerification{std::move(result.peak_live_bytes), result.firings};
}

}  // namespace penstock::planner
