// The order in which devices launch collectives where they run them themselves, as GPUs do through
// NCCL: the same on every member of a group, whatever runs late.
//
// NCCL matches the calls on a communicator by their order, and kernels of several communicators may
// wait for each other on a device. So one order is laid over all collectives of a step, and each
// device launches its own in that order, step after step. It is the order in which they take place
// when the plan is fired with every collective as a meeting: it happens when the phases of all
// members have come to it, and none of them passes it before. That is one of the orders in which
// the plan may run, so no launch waits for something that waits for it: of all that has not
// happened yet, the first in the firing can happen.
//
// Example: two devices; phase B has tensor-parallel collectives t0, t1, and a bucket of gradients b
// in a phase of its own gets its token between them
//   order of both devices   t0 in B, b in "reduce gradients 0", t1 in B
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_LAUNCH_ORDER_H_
#define PENSTOCK_PLANNER_PLAN_LAUNCH_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// The next `count` collectives of the phase, over as many instances as that takes.
struct LaunchRun {
  uint32_t phase = 0;
  uint32_t count = 0;
  friend bool operator==(const LaunchRun&, const LaunchRun&) = default;
};

// Of each device, what it launches in one step.
using LaunchOrder = std::vector<std::vector<LaunchRun>>;

// kFailedPrecondition: there is no such order, because a stage leaves the order of its phases to
// the policy, or because a phase has to pass a collective before others come to it. Errors of
// CheckReferences and ScheduleOf (stage_schedule.h), too. REQUIRES: CheckStructure accepts the
// plan, or the engine's CheckPlan does.
absl::StatusOr<LaunchOrder> OrderLaunches(const Plan& plan, const PolicyRegistry& policies);

// Whether devices can follow the order: it has all launches of a step, the members of each group
// launch the collectives of the group in the same order, and steps that overlap come to their end.
// kInvalidArgument or kFailedPrecondition say what is wrong. REQUIRES: as
// OrderLaunches, which has an order for the plan.
absl::Status CheckLaunchOrder(const Plan& plan, const PolicyRegistry& policies,
                              const LaunchOrder& order);

// The part of it that a device can tell from its own part of the plan: whether `launches` are all
// those of a step. kInvalidArgument if not.
absl::Status CheckDeviceLaunches(const Plan& plan, uint32_t device,
                                 const std::vector<LaunchRun>& launches);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_LAUNCH_ORDER_H_
