#include "planner/plan/launch_order.h"

#include <map>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/check_references.h"
#include "planner/plan/firing_internal.h"
#include "planner/plan/rendezvous.h"
#include "planner/plan/show_plan.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::planner {
namespace {

PhaseWorkspaceBytes NoWorkspaces(const Plan& plan) {
  PhaseWorkspaceBytes bytes;
  for (const DevicePlan& device : plan.devices) bytes.emplace_back(device.phases.size(), 0);
  return bytes;
}

// The collectives of each phase, in its order.
std::vector<std::vector<uint32_t>> CollectivesOf(const DevicePlan& device) {
  std::vector<std::vector<uint32_t>> collectives(device.phases.size());
  for (size_t p = 0; p < device.phases.size(); ++p) {
    const PhasePlan& phase = device.phases[p];
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const ActorPlan& actor = device.actors[a];
      if (actor.kind == ActorKind::kCollective) collectives[p].push_back(actor.target);
    }
  }
  return collectives;
}

// Of each group, the first device found and what it launches on the group's behalf in a step.
using LaunchesOfGroups =
    std::map<std::vector<uint32_t>, std::pair<uint32_t, std::vector<uint32_t>>>;

absl::Status CheckDevice(const Plan& plan, const LaunchOrder& order, uint32_t d,
                         LaunchesOfGroups* groups) {
  RETURN_IF_ERROR(CheckDeviceLaunches(plan, d, order[d]));
  const DevicePlan& device = plan.devices[d];
  const std::vector<std::vector<uint32_t>> collectives = CollectivesOf(device);
  std::vector<uint64_t> launched(device.phases.size(), 0);
  std::map<std::vector<uint32_t>, std::vector<uint32_t>> launches;
  for (const LaunchRun& run : order[d]) {
    const std::vector<uint32_t>& of_phase = collectives[run.phase];
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t target = of_phase[launched[run.phase]++ % of_phase.size()];
      launches[plan.collectives[target].devices].push_back(target);
    }
  }
  for (auto& [group, sequence] : launches) {
    const auto [it, is_first] = groups->try_emplace(group, d, std::move(sequence));
    if (is_first || it->second.second == sequence) continue;
    return absl::InvalidArgumentError(StrCat("devices ", it->second.first, " and ", d,
                                             " launch the collectives of devices ",
                                             StrJoin(group, ", "), " in different orders"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchOrder> OrderLaunches(const Plan& plan, const PolicyRegistry& policies) {
  RETURN_IF_ERROR(CheckReferences(plan));
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    ASSIGN_OR_RETURN(const StageSchedule schedule, ScheduleOf(plan, s, policies));
    if (StageContextOf(plan, s).has_choices() && schedule.order.empty()) {
      return absl::FailedPreconditionError(
          StrCat("collectives have no order that is known before the plan runs: policy '",
                 plan.policy, "' decides in which order stage ", s, " runs its phases"));
    }
  }
  const RendezvousTable rendezvous = FindRendezvous(plan);
  const PhaseWorkspaceBytes workspace_bytes = NoWorkspaces(plan);
  return internal::Firing(plan, policies, rendezvous, workspace_bytes, nullptr).OrderLaunches();
}

absl::Status CheckDeviceLaunches(const Plan& plan, uint32_t device,
                                 const std::vector<LaunchRun>& launches) {
  const DevicePlan& device_plan = plan.devices[device];
  const std::vector<std::vector<uint32_t>> collectives = CollectivesOf(device_plan);
  std::vector<uint64_t> launched(device_plan.phases.size(), 0);
  for (const LaunchRun& run : launches) {
    if (run.phase >= device_plan.phases.size() || collectives[run.phase].empty()) {
      return absl::InvalidArgumentError(StrCat("device ", device, " launches collectives of phase ",
                                               run.phase, ", which has none"));
    }
    launched[run.phase] += run.count;
  }
  for (uint32_t p = 0; p < device_plan.phases.size(); ++p) {
    const uint64_t expected = collectives[p].size() * FiringsPerStep(plan, device_plan.phases[p]);
    if (launched[p] == expected) continue;
    return absl::InvalidArgumentError(StrCat(DescribePhase(plan, device, p), " launches ",
                                             launched[p], " collectives a step instead of ",
                                             expected));
  }
  return absl::OkStatus();
}

absl::Status CheckLaunchOrder(const Plan& plan, const PolicyRegistry& policies,
                              const LaunchOrder& order) {
  if (order.size() != plan.devices.size()) {
    return absl::InvalidArgumentError(StrCat(
        order.size(), " devices have an order of launches instead of ", plan.devices.size()));
  }
  LaunchesOfGroups groups;
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    RETURN_IF_ERROR(CheckDevice(plan, order, d, &groups));
  }
  const RendezvousTable rendezvous = FindRendezvous(plan);
  const PhaseWorkspaceBytes workspace_bytes = NoWorkspaces(plan);
  return internal::Firing(plan, policies, rendezvous, workspace_bytes, nullptr)
      .CheckLaunches(order);
}

}  // namespace penstock::planner
