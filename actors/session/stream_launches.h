// How the devices of a plan run its collectives themselves, through communicators
// (transport/stream_collective.h).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_SESSION_STREAM_LAUNCHES_H_
#define PENSTOCK_ACTORS_SESSION_STREAM_LAUNCHES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/plan/launch_order.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "transport/stream_collective.h"

namespace penstock::actors {

// What all devices must agree on before they launch collectives.
struct StreamLaunches {
  planner::LaunchOrder order;        // of each device
  std::vector<bool> tells_failures;  // of each collective (planner/plan/failure_flags.h)
};

// kFailedPrecondition: the plan has no order, so the host has to run its collectives: members that
// launch in different orders might wait for each other, even with a communicator for each
// collective. REQUIRES: the plan has all devices, and the engine's CheckPlan accepts it.
absl::StatusOr<StreamLaunches> PlanStreamLaunches(const planner::Plan& plan,
                                                  const planner::PolicyRegistry& policies);

// Whether launches that were received fit the devices of a part of a plan; those of other devices
// are not looked at.
absl::Status CheckStreamLaunches(const planner::Plan& plan, uint32_t first_device,
                                 uint32_t num_devices, const StreamLaunches& launches);

// The groups that the collectives of a plan join, each once, in increasing order.
std::vector<transport::DeviceGroup> GroupsOf(const planner::Plan& plan);
// Those of them with a device of a range.
std::vector<transport::DeviceGroup> GroupsWith(const std::vector<transport::DeviceGroup>& groups,
                                               uint32_t first_device, uint32_t num_devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_STREAM_LAUNCHES_H_
