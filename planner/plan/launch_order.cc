#include "planner/plan/launch_order.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"

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

// "collectives and messages"
std::string_view NameOfLaunches(Launched launched) {
  return launched == Launched::kCollectives ? "collectives" : "collectives and messages";
}

// The rendezvous of each phase that are launched, in its order.
std::vector<std::vector<uint32_t>> LaunchesOf(const Plan& plan, const DevicePlan& device,
                                              Launched launched) {
  std::vector<std::vector<uint32_t>> launches(device.phases.size());
  for (size_t p = 0; p < device.phases.size(); ++p) {
    const PhasePlan& phase = device.phases[p];
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const ActorPlan& actor = device.actors[a];
      if (IsLaunched(actor.kind, launched)) launches[p].push_back(RendezvousOf(plan, actor));
    }
  }
  return launches;
}

// Those that communicate with each other: the members of a collective, or a sender and a receiver.
struct LaunchGroup {
  std::vector<uint32_t> devices;
  bool has_messages = false;
  friend auto operator<=>(const LaunchGroup&, const LaunchGroup&) = default;
};

LaunchGroup LaunchGroupOf(const Plan& plan, uint32_t rendezvous) {
  const size_t num_collectives = plan.collectives.size();
  if (rendezvous < num_collectives) return {plan.collectives[rendezvous].devices, false};
  const TransferPlan& transfer = plan.transfers[rendezvous - num_collectives];
  return {{transfer.source, transfer.destination}, true};
}

// Of each group, the first device found and what it launches on the group's behalf in a step.
using LaunchesOfGroups = std::map<LaunchGroup, std::pair<uint32_t, std::vector<uint32_t>>>;

absl::Status CheckDevice(const Plan& plan, const LaunchOrder& order, Launched launched, uint32_t d,
                         LaunchesOfGroups* groups) {
  RETURN_IF_ERROR(CheckDeviceLaunches(plan, d, order[d], launched));
  const DevicePlan& device = plan.devices[d];
  const std::vector<std::vector<uint32_t>> rendezvous = LaunchesOf(plan, device, launched);
  std::vector<uint64_t> num_launched(device.phases.size(), 0);
  std::map<LaunchGroup, std::vector<uint32_t>> launches;
  for (const LaunchRun& run : order[d]) {
    const std::vector<uint32_t>& of_phase = rendezvous[run.phase];
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t next = of_phase[num_launched[run.phase]++ % of_phase.size()];
      launches[LaunchGroupOf(plan, next)].push_back(next);
    }
  }
  for (auto& [group, sequence] : launches) {
    const auto [it, is_first] = groups->try_emplace(group, d, std::move(sequence));
    if (is_first || it->second.second == sequence) continue;
    return absl::InvalidArgumentError(
        group.has_messages
            ? StrCat("devices ", it->second.first, " and ", d, " launch the messages from device ",
                     group.devices[0], " to device ", group.devices[1], " in different orders")
            : StrCat("devices ", it->second.first, " and ", d,
                     " launch the collectives of devices ", StrJoin(group.devices, ", "),
                     " in different orders"));
  }
  return absl::OkStatus();
}

// Whether what devices launch can be put into one order, in which a launch takes place when all
// members have come to it.
absl::Status CheckIsOneOrder(const Plan& plan, const RendezvousTable& rendezvous,
                             const LaunchOrder& order, Launched launched) {
  std::vector<std::vector<uint32_t>> sequences(order.size());  // of rendezvous, by device
  for (uint32_t d = 0; d < order.size(); ++d) {
    const std::vector<std::vector<uint32_t>> of_phases =
        LaunchesOf(plan, plan.devices[d], launched);
    std::vector<uint64_t> num_launched(of_phases.size(), 0);
    for (const LaunchRun& run : order[d]) {
      const std::vector<uint32_t>& of_phase = of_phases[run.phase];
      for (uint32_t i = 0; i < run.count; ++i) {
        sequences[d].push_back(of_phase[num_launched[run.phase]++ % of_phase.size()]);
      }
    }
  }
  std::vector<size_t> positions(order.size(), 0);
  std::vector<size_t> num_arrived(rendezvous.size(), 0);
  std::vector<uint32_t> complete;  // all of whose members have come to it
  const auto arrive = [&](uint32_t d) {
    if (positions[d] == sequences[d].size()) return;
    const uint32_t next = sequences[d][positions[d]];
    if (++num_arrived[next] == rendezvous.Of(next).size()) complete.push_back(next);
  };
  for (uint32_t d = 0; d < order.size(); ++d) arrive(d);
  while (!complete.empty()) {
    const uint32_t next = complete.back();
    complete.pop_back();
    num_arrived[next] = 0;
    for (const ActorRef& member : rendezvous.Of(next)) {
      ++positions[member.device];
      arrive(member.device);
    }
  }
  for (uint32_t d = 0; d < order.size(); ++d) {
    if (positions[d] == sequences[d].size()) continue;
    const absl::Span<const ActorRef> members = rendezvous.Of(sequences[d][positions[d]]);
    const auto own = std::find_if(members.begin(), members.end(),
                                  [d](const ActorRef& member) { return member.device == d; });
    return absl::InvalidArgumentError(
        StrCat("devices launch in orders that are no parts of one: ",
               DescribeActor(plan, own->device, own->actor),
               " waits for a member that launches something else first"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchOrder> OrderLaunches(const Plan& plan, const PolicyRegistry& policies,
                                          Launched launched) {
  RETURN_IF_ERROR(CheckReferences(plan));
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    ASSIGN_OR_RETURN(const StageSchedule schedule, ScheduleOf(plan, s, policies));
    if (StageContextOf(plan, s).has_choices() && schedule.order.empty()) {
      return absl::FailedPreconditionError(StrCat(
          NameOfLaunches(launched), " have no order that is known before the plan runs: policy '",
          plan.policy, "' decides in which order stage ", s, " runs its phases"));
    }
  }
  const RendezvousTable rendezvous = FindRendezvous(plan);
  const PhaseWorkspaceBytes workspace_bytes = NoWorkspaces(plan);
  return internal::Firing(plan, policies, rendezvous, workspace_bytes, nullptr)
      .OrderLaunches(launched);
}

absl::Status CheckDeviceLaunches(const Plan& plan, uint32_t device,
                                 const std::vector<LaunchRun>& launches, Launched launched) {
  const DevicePlan& device_plan = plan.devices[device];
  const std::vector<std::vector<uint32_t>> of_phases = LaunchesOf(plan, device_plan, launched);
  std::vector<uint64_t> num_launched(device_plan.phases.size(), 0);
  for (const LaunchRun& run : launches) {
    if (run.phase >= device_plan.phases.size() || of_phases[run.phase].empty()) {
      return absl::InvalidArgumentError(StrCat("device ", device, " launches ",
                                               NameOfLaunches(launched), " of phase ", run.phase,
                                               ", which has none"));
    }
    num_launched[run.phase] += run.count;
  }
  for (uint32_t p = 0; p < device_plan.phases.size(); ++p) {
    const uint64_t expected = of_phases[p].size() * FiringsPerStep(plan, device_plan.phases[p]);
    if (num_launched[p] == expected) continue;
    return absl::InvalidArgumentError(StrCat(DescribePhase(plan, device, p), " launches ",
                                             num_launched[p], " ", NameOfLaunches(launched),
                                             " a step instead of ", expected));
  }
  return absl::OkStatus();
}

absl::Status CheckLaunchOrder(const Plan& plan, const PolicyRegistry& policies,
                              const LaunchOrder& order, Launched launched) {
  if (order.size() != plan.devices.size()) {
    return absl::InvalidArgumentError(StrCat(
        order.size(), " devices have an order of launches instead of ", plan.devices.size()));
  }
  LaunchesOfGroups groups;
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    RETURN_IF_ERROR(CheckDevice(plan, order, launched, d, &groups));
  }
  const RendezvousTable rendezvous = FindRendezvous(plan);
  RETURN_IF_ERROR(CheckIsOneOrder(plan, rendezvous, order, launched));
  const PhaseWorkspaceBytes workspace_bytes = NoWorkspaces(plan);
  return internal::Firing(plan, policies, rendezvous, workspace_bytes, nullptr)
      .CheckLaunches(order, launched);
}

}  // namespace penstock::planner
