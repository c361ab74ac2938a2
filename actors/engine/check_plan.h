// The last guard before a plan is loaded: nothing in it is trusted. Whatever passes can be linked
// and run without touching memory outside its arenas; whether it makes progress is the business of
// the planner's verification and of the bounded waits of a run.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_ENGINE_CHECK_PLAN_H_
#define PENSTOCK_ACTORS_ENGINE_CHECK_PLAN_H_

#include "absl/status/status.h"

#include "planner/plan/plan.h"

namespace penstock::actors {

// kInvalidArgument names the place: "device 2, actor 'h3.attn': ...".
absl::Status CheckPlan(const planner::Plan& plan);

// The same of a plan in which only these devices have actors (cluster/plan_slice.h).
absl::Status CheckPlanSlice(const planner::Plan& plan, uint32_t first_device, uint32_t num_devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_CHECK_PLAN_H_
