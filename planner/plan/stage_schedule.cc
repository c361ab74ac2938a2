#include "planner/plan/stage_schedule.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {

namespace {

std::string OfChunk(int chunk) { return chunk == 0 ? "" : StrCat(" of chunk ", chunk); }

}  // namespace

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

absl::Status CheckOrder(const StageContext& context, absl::Span<const PhaseChoice> order) {
  std::vector<std::array<int, kNumPolicyKinds>> counts(context.chunks.size());
  for (const PhaseChoice& choice : order) {
    if (!context.has(choice.kind, choice.chunk)) {
      return absl::InvalidArgumentError(StrCat("a phase of kind ", Name(choice.kind),
                                               OfChunk(choice.chunk),
                                               ", of which the stage has none"));
    }
    int& count = counts[choice.chunk][static_cast<size_t>(choice.kind)];
    if (choice.microbatch != count) {
      return absl::InvalidArgumentError(StrCat(Name(choice.kind), " of micro-batch ",
                                               choice.microbatch, OfChunk(choice.chunk),
                                               ", expected micro-batch ", count));
    }
    ++count;
  }
  for (int chunk = 0; chunk < context.num_chunks(); ++chunk) {
    for (int k = 0; k < kNumPolicyKinds; ++k) {
      const auto kind = static_cast<PhaseKind>(k);
      if (!context.has(kind, chunk) || counts[chunk][k] == context.num_microbatches) continue;
      return absl::InvalidArgumentError(StrCat(counts[chunk][k], " phases of kind ", Name(kind),
                                               OfChunk(chunk), ", expected ",
                                               context.num_microbatches));
    }
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
