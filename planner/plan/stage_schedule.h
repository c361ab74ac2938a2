// The order of the phases of a stage: the plan's own, or what its policy decides.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_STAGE_SCHEDULE_H_
#define PENSTOCK_PLANNER_PLAN_STAGE_SCHEDULE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// What a policy is told of a stage: its chunks and kinds are those of the phases of its devices.
// Phases of kinds and chunks that there are not are left out (CheckStructure refuses them).
StageContext StageContextOf(const Plan& plan, uint32_t stage);

// Follows the plan's order; where the plan has none, asks its policy. kNotFound: that is not among
// `policies`. kInvalidArgument: an order that does not run every phase as often as it must, or
// MakeSchedule's errors.
absl::StatusOr<StageSchedule> ScheduleOf(const Plan& plan, uint32_t stage,
                                         const PolicyRegistry& policies);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_STAGE_SCHEDULE_H_
