#include "planner/plan/stage_schedule.h"

#include <array>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {

StageContext StageContextOf(const Plan& plan, uint32_t stage) {
  StageContext context;
  context.stage = static_cast<int>(stage);
  context.num_stages = static_cast<int>(plan.stages.size());
  context.num_microbatches = static_cast<int>(plan.num_microbatches);
  context.has_kind = {};
  for (const uint32_t device : plan.stages[stage].devices) {
    for (const PhasePlan& phase : plan.devices[device].phases) {
      if (phase.lane == Lane::kCompute) context.has_kind[static_cast<size_t>(phase.kind)] = true;
    }
  }
  return context;
}

absl::Status CheckOrder(const StageContext& context, absl::Span<const PhaseChoice> order) {
  std::array<int, kNumPolicyKinds> counts = {};
  for (const PhaseChoice& choice : order) {
    const auto kind = static_cast<size_t>(choice.kind);
    if (kind >= kNumPolicyKinds || !context.has_kind[kind]) {
      return absl::InvalidArgumentError(
          StrCat("a phase of kind ", Name(choice.kind), ", of which the stage has none"));
    }
    if (choice.microbatch != counts[kind]++) {
      return absl::InvalidArgumentError(StrCat(Name(choice.kind), " of micro-batch ",
                                               choice.microbatch, ", expected micro-batch ",
                                               counts[kind] - 1));
    }
  }
  for (size_t kind = 0; kind < kNumPolicyKinds; ++kind) {
    const int expected = context.has_kind[kind] ? context.num_microbatches : 0;
    if (counts[kind] == expected) continue;
    return absl::InvalidArgumentError(StrCat(counts[kind], " phases of kind ",
                                             Name(static_cast<PhaseKind>(kind)), ", expected ",
                                             expected));
  }
  return absl::OkStatus();
}

absl::StatusOr<StageSchedule> ScheduleOf(const Plan& plan, uint32_t stage,
                                         const PolicyRegistry& policies) {
  const StageContext context = StageContextOf(plan, stage);
  StageSchedule schedule;
  if (!context.has_choices()) return schedule;
  if (plan.stages[stage].order.empty()) {
    const Policy* policy = policies.Find(plan.policy);
    if (policy == nullptr) {
      return absl::NotFoundError(StrCat("the plan has no order for stage ", stage,
                                        ", and there is no policy '", plan.policy,
                                        "'; known: ", StrJoin(policies.Names(), ", ")));
    }
    ASSIGN_OR_RETURN(schedule, MakeSchedule(*policy, context));
  } else {
    schedule.order = plan.stages[stage].order;
    schedule.scheduler = FollowOrder(schedule.order);
  }
  if (schedule.order.empty()) return schedule;
  const absl::Status status = CheckOrder(context, schedule.order);
  if (status.ok()) return schedule;
  return absl::InvalidArgumentError(
      StrCat("policy ", plan.policy, " orders on stage ", stage, ": ", ToStd(status.message())));
}

}  // namespace penstock::planner
