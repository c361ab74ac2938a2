// The order in which devices launch collectives, or collectives and messages, where they run them
// themselves, as GPUs do through NCCL: the same on every member of a group, whatever runs late.
//
// NCCL matches the calls on a communicator by their order, and kernels of several communicators may
// wait for each other on a device. So one order is laid over all launches of a step, and each
// device launches its own in that order, step after step. It is the order in which they take place
// when the plan is fired with each as a rendezvous: it happens when the phases of all members have
// come to it, and none of them passes it before. That is one of the orders in which the plan may
// run, so no launch waits for something that waits for it: of all that has not happened yet, the
// first in the firing can happen. It follows that a host may wait at any time for all that its
// device has been given, as drivers do that load a kernel, and NCCL at a communicator's first
// launch: what that needs of other devices comes before it in the order.
//
// The sender of a message and its receiver meet as the members of a collective do. A receive takes
// place when its register is free, as credits say, so an order with messages exists if the plan
// does not deadlock where sends wait for their receives.
//
// Examples: two devices; phase B has tensor-parallel collectives t0, t1, and a bucket of gradients
// b in a phase of its own gets its token between them
//   order of both devices   t0 in B, b in "reduce gradients 0", t1 in B
// Two stages under 1F1B, two micro-batches, with messages
//   first stage    send x 0, recv g 0, send x 1, recv g 1
//   second stage   recv x 0, send g 0, recv x 1, send g 1
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_LAUNCH_ORDER_H_
#define PENSTOCK_PLANNER_PLAN_LAUNCH_ORDER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// What devices launch themselves.
enum class Launched : uint8_t { kCollectives, kCollectivesAndMessages };
// "collectives and messages"
std::string_view Name(Launched launched);

// Whether actors of the kind are launched by devices themselves.
inline bool IsLaunched(ActorKind kind, Launched launched) {
  return kind == ActorKind::kCollective ||
         (IsCommunication(kind) && launched == Launched::kCollectivesAndMessages);
}

// The next `count` launches of the phase, over as many instances as that takes.
struct LaunchRun {
  uint32_t phase = 0;  // index in DevicePlan::phases
  uint32_t count = 0;  // launches, not instances
  friend bool operator==(const LaunchRun&, const LaunchRun&) = default;
};

// Of each device, what it launches in one step.
using LaunchOrder = std::vector<std::vector<LaunchRun>>;

// kFailedPrecondition: there is no such order, because a stage leaves the order of its phases to
// the policy, or because a phase has to pass a launch before others come to it. Errors of
// CheckReferences and ScheduleOf (stage_schedule.h), too. REQUIRES: CheckStructure accepts the
// plan, or the engine's CheckPlan does.
absl::StatusOr<LaunchOrder> OrderLaunches(const Plan& plan, const PolicyRegistry& policies,
                                          Launched launched = Launched::kCollectives);

// Whether devices can follow the order: it has all launches of a step, what the devices launch are
// parts of one order, so that members of a group agree, and steps that overlap come to their end.
// kInvalidArgument or kFailedPrecondition say what is wrong. REQUIRES: as OrderLaunches, which has
// an order for the plan.
absl::Status CheckLaunchOrder(const Plan& plan, const PolicyRegistry& policies,
                              const LaunchOrder& order, Launched launched = Launched::kCollectives);

// The part of it that a device can tell from its own part of the plan: whether `launches` are all
// those of a step. kInvalidArgument if not.
absl::Status CheckDeviceLaunches(const Plan& plan, uint32_t device,
                                 const std::vector<LaunchRun>& launches,
                                 Launched launched = Launched::kCollectives);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_LAUNCH_ORDER_H_
