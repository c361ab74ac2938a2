#include "actors/session/stream_launches.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/failure_flags.h"

namespace penstock::actors {

namespace {

absl::StatusOr<planner::LaunchOrder> OrderOf(const planner::Plan& plan,
                                             const planner::PolicyRegistry& policies,
                                             planner::Launched launched) {
  ASSIGN_OR_RETURN(planner::LaunchOrder order, planner::OrderLaunches(plan, policies, launched));
  if (const absl::Status status = planner::CheckLaunchOrder(plan, policies, order, launched);
      !status.ok()) {
    return absl::FailedPreconditionError(status.message());
  }
  return order;
}

// Of the two devices of a transfer.
transport::DeviceGroup MessageGroup(const planner::TransferPlan& transfer) {
  return transport::GroupOf(transport::MessageOf(transfer.channel, transfer.source,
                                                 transfer.destination, transfer.num_bytes));
}

// Whether there is room on all devices for a message of each of their groups.
absl::Status CheckMessageBlocks(const planner::Plan& plan) {
  std::map<uint32_t, std::set<transport::DeviceGroup>> groups;  // by device
  for (const planner::TransferPlan& transfer : plan.transfers) {
    const transport::DeviceGroup group = MessageGroup(transfer);
    for (const uint32_t device : group.devices) groups[device].insert(group);
  }
  for (const auto& [device, of_device] : groups) {
    int num_blocks = 0;
    for (const transport::DeviceGroup& group : of_device) {
      num_blocks += group.use == transport::GroupUse::kMessages ? transport::kMessageBlocks
                                                                : transport::kSmallMessageBlocks;
    }
    if (num_blocks <= kMaxMessageBlocks) continue;
    return absl::FailedPreconditionError(
        StrCat("device ", device, " exchanges messages with so many devices that those which wait ",
               "could take ", num_blocks, " thread blocks of it, and ", kMaxMessageBlocks,
               " is the limit"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StreamLaunches> PlanStreamLaunches(const planner::Plan& plan,
                                                  const planner::PolicyRegistry& policies) {
  StreamLaunches launches;
  launches.tells_failures = planner::CollectivesThatTellFailures(plan);
  if (!plan.transfers.empty()) {
    absl::Status status = CheckMessageBlocks(plan);
    if (status.ok()) {
      launches.launched = planner::Launched::kCollectivesAndMessages;
      absl::StatusOr<planner::LaunchOrder> order = OrderOf(plan, policies, launches.launched);
      if (order.ok()) {
        launches.order = *std::move(order);
        return launches;
      }
      status = order.status();
    }
    if (plan.collectives.empty()) return status;
    launches.launched = planner::Launched::kCollectives;
    launches.why_not_messages = ToStd(status.message());
  }
  ASSIGN_OR_RETURN(launches.order, OrderOf(plan, policies, launches.launched));
  return launches;
}

absl::Status CheckStreamLaunches(const planner::Plan& plan, uint32_t first_device,
                                 uint32_t num_devices, const StreamLaunches& launches) {
  if (launches.order.size() != plan.devices.size() ||
      launches.tells_failures.size() != plan.collectives.size()) {
    return absl::InvalidArgumentError("the launches are those of another plan");
  }
  for (uint32_t device = first_device; device < first_device + num_devices; ++device) {
    RETURN_IF_ERROR(
        planner::CheckDeviceLaunches(plan, device, launches.order[device], launches.launched));
  }
  return absl::OkStatus();
}

std::vector<transport::DeviceGroup> GroupsOf(const planner::Plan& plan,
                                             planner::Launched launched) {
  std::set<transport::DeviceGroup> groups;
  for (const CollectiveSpec& spec : plan.collectives) groups.insert(transport::GroupOf(spec));
  if (launched == planner::Launched::kCollectivesAndMessages) {
    for (const planner::TransferPlan& transfer : plan.transfers) {
      groups.insert(MessageGroup(transfer));
    }
  }
  return {groups.begin(), groups.end()};
}

std::vector<transport::DeviceGroup> GroupsWith(const std::vector<transport::DeviceGroup>& groups,
                                               uint32_t first_device, uint32_t num_devices) {
  std::vector<transport::DeviceGroup> found;
  for (const transport::DeviceGroup& group : groups) {
    if (std::any_of(group.devices.begin(), group.devices.end(),
                    [&](uint32_t device) { return device - first_device < num_devices; })) {
      found.push_back(group);
    }
  }
  return found;
}

}  // namespace penstock::actors
