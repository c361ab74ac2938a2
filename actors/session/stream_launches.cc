#include "actors/session/stream_launches.h"

#include <algorithm>
#include <set>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/failure_flags.h"

namespace penstock::actors {

absl::StatusOr<StreamLaunches> PlanStreamLaunches(const planner::Plan& plan,
                                                  const planner::PolicyRegistry& policies) {
  StreamLaunches launches;
  ASSIGN_OR_RETURN(launches.order, planner::OrderLaunches(plan, policies));
  if (const absl::Status status = planner::CheckLaunchOrder(plan, policies, launches.order);
      !status.ok()) {
    return absl::FailedPreconditionError(status.message());
  }
  launches.tells_failures = planner::CollectivesThatTellFailures(plan);
  return launches;
}

absl::Status CheckStreamLaunches(const planner::Plan& plan, uint32_t first_device,
                                 uint32_t num_devices, const StreamLaunches& launches) {
  if (launches.order.size() != plan.devices.size() ||
      launches.tells_failures.size() != plan.collectives.size()) {
    return absl::InvalidArgumentError("the launches of collectives are those of another plan");
  }
  for (uint32_t device = first_device; device < first_device + num_devices; ++device) {
    RETURN_IF_ERROR(planner::CheckDeviceLaunches(plan, device, launches.order[device]));
  }
  return absl::OkStatus();
}

std::vector<transport::DeviceGroup> GroupsOf(const planner::Plan& plan) {
  std::set<transport::DeviceGroup> groups;
  for (const CollectiveSpec& spec : plan.collectives) groups.insert(spec.devices);
  return {groups.begin(), groups.end()};
}

std::vector<transport::DeviceGroup> GroupsWith(const std::vector<transport::DeviceGroup>& groups,
                                               uint32_t first_device, uint32_t num_devices) {
  std::vector<transport::DeviceGroup> found;
  for (const transport::DeviceGroup& group : groups) {
    if (std::any_of(group.begin(), group.end(),
                    [&](uint32_t device) { return device - first_device < num_devices; })) {
      found.push_back(group);
    }
  }
  return found;
}

}  // namespace penstock::actors
