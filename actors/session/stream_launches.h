// How the devices of a plan run its collectives and messages themselves, through communicators
// (transport/stream_collective.h).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_SESSION_STREAM_LAUNCHES_H_
#define PENSTOCK_ACTORS_SESSION_STREAM_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/plan/launch_order.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "transport/stream_collective.h"

namespace penstock::actors {

// Thread blocks of the messages of a device, where each of its groups has one under way
// (transport::kMessageBlocks). A receive may be launched long before its sender is ready. Until
// then it takes its part of the GPU, and with many of them what they wait for might never run.
inline constexpr int kMaxMessageBlocks = 64;

// What all devices must agree on before they launch collectives and messages.
struct StreamLaunches {
  planner::LaunchOrder order;        // of each device
  std::vector<bool> tells_failures;  // of each collective (planner/plan/failure_flags.h)
  planner::Launched launched = planner::Launched::kCollectives;  // what the order has
  // Why the host carries the plan's messages; empty where it does not, or the plan has none.
  std::string why_not_messages;
};

// With messages if the plan has any, all devices could launch them in one order with the registers
// that the plan gives them, and no device's take more than kMaxMessageBlocks. kFailedPrecondition:
// the plan has no order, so the host has to run its collectives and messages: members that launch
// in different orders might wait for each other, even with a communicator for each collective.
// REQUIRES: the plan has all devices, and the engine's CheckPlan accepts it.
absl::StatusOr<StreamLaunches> PlanStreamLaunches(const planner::Plan& plan,
                                                  const planner::PolicyRegistry& policies);

// Whether launches that were received fit the devices of a part of a plan; those of other devices
// are not looked at.
absl::Status CheckStreamLaunches(const planner::Plan& plan, uint32_t first_device,
                                 uint32_t num_devices, const StreamLaunches& launches);

// The groups that run what the plan's devices launch, each once, in increasing order.
std::vector<transport::DeviceGroup> GroupsOf(const planner::Plan& plan, planner::Launched launched);
// Those of them with a device of a range.
std::vector<transport::DeviceGroup> GroupsWith(const std::vector<transport::DeviceGroup>& groups,
                                               uint32_t first_device, uint32_t num_devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_STREAM_LAUNCHES_H_
