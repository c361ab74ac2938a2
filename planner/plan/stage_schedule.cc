#include "planner/plan/stage_schedule.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {

StageContext StageContextOf(const Plan& plan, uint32_t stage) {
  StageContext context;
  context.stage = static_cast<int>(stage);
  context.num_stages = static_cast<int>(plan.stages.size());
  context.num_microbatches = static_cast<int>(plan.num_microbatches);
  context.chunks = {PhaseKinds{}};
  for (const uint32_t device : plan.stages[stage].devices) {
    for (const PhasePlan& phase : plan.devices[device].phases) {
      const bool is_known =
          static_cast<int>(phase.kind) < kNumPolicyKinds && phase.chunk < kMaxChunks;
      if (phase.lane != Lane::kCompute || !is_known) continue;
      if (phase.chunk >= context.chunks.size()) context.chunks.resize(phase.chunk + 1);
      context.chunks[phase.chunk][static_cast<size_t>(phase.kind)] = true;
    }
  }
  return context;
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
