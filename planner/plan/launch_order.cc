#include "planner/plan/launch_order.h"

#include <string_view>
#include <utility>
#include <vector>

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

// The rendezvous that a device launches in a step. REQUIRES: CheckDeviceLaunches accepts the runs.
std::vector<uint32_t> SequenceOf(const Plan& plan, const DevicePlan& device,
                                 const std::vector<LaunchRun>& runs, Launched launched) {
  const std::vector<std::vector<uint32_t>> of_phases = LaunchesOf(plan, device, launched);
  std::vector<uint64_t> num_launched(of_phases.size(), 0);
  std::vector<uint32_t> sequence;
  for (const LaunchRun& run : runs) {
    const std::vector<uint32_t>& of_phase = of_phases[run.phase];
    for (uint32_t i = 0; i < run.count; ++i) {
      sequence.push_back(of_phase[num_launched[run.phase]++ % of_phase.size()]);
    }
  }
  return sequence;
}

// Whether what devices launch can be put into one order, in which a launch takes place when all
// members have come to it. Then the members of a group launch what the group runs in the same
// order, too.
absl::Status CheckIsOneOrder(const Plan& plan, const RendezvousTable& rendezvous,
                             const LaunchOrder& order, Launched launched) {
  std::vector<std::vector<uint32_t>> sequences;  // by device
  for (uint32_t d = 0; d < order.size(); ++d) {
    sequences.push_back(SequenceOf(plan, plan.devices[d], order[d], launched));
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
  // What a device is at.
  const auto describe = [&](uint32_t d) {
    if (positions[d] == sequences[d].size()) return StrCat("device ", d, " has launched all");
    for (const ActorRef& member : rendezvous.Of(sequences[d][positions[d]])) {
      if (member.device == d) return DescribeActor(plan, d, member.actor);
    }
    return std::string();
  };
  for (uint32_t d = 0; d < order.size(); ++d) {
    if (positions[d] == sequences[d].size()) continue;
    const uint32_t next = sequences[d][positions[d]];
    for (const ActorRef& member : rendezvous.Of(next)) {
      const uint32_t other = member.device;
      const bool is_there =
          positions[other] < sequences[other].size() && sequences[other][positions[other]] == next;
      if (is_there) continue;
      return absl::InvalidArgumentError(
          StrCat("devices launch in orders that are no parts of one: ", describe(d),
                 " waits for device ", other, ", where this is first: ", describe(other)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(Launched launched) {
  return launched == Launched::kCollectives ? "collectives" : "collectives and messages";
}

absl::StatusOr<LaunchOrder> OrderLaunches(const Plan& plan, const PolicyRegistry& policies,
                                          Launched launched) {
  RETURN_IF_ERROR(CheckReferences(plan));
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    ASSIGN_OR_RETURN(const StageSchedule schedule, ScheduleOf(plan, s, policies));
    if (StageContextOf(plan, s).has_choices() && schedule.order.empty()) {
      return absl::FailedPreconditionError(
          StrCat(Name(launched), " have no order that is known before the plan runs: policy '",
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
      return absl::InvalidArgumentError(StrCat("device ", device, " launches ", Name(launched),
                                               " of phase ", run.phase, ", which has none"));
    }
    num_launched[run.phase] += run.count;
  }
  for (uint32_t p = 0; p < device_plan.phases.size(); ++p) {
    const uint64_t expected = of_phases[p].size() * FiringsPerStep(plan, device_plan.phases[p]);
    if (num_launched[p] == expected) continue;
    return absl::InvalidArgumentError(StrCat(DescribePhase(plan, device, p), " launches ",
                                             num_launched[p], " ", Name(launched),
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
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    RETURN_IF_ERROR(CheckDeviceLaunches(plan, d, order[d], launched));
  }
  const RendezvousTable rendezvous = FindRendezvous(plan);
  RETURN_IF_ERROR(CheckIsOneOrder(plan, rendezvous, order, launched));
  const PhaseWorkspaceBytes workspace_bytes = NoWorkspaces(plan);
  return internal::Firing(plan, policies, rendezvous, workspace_bytes, nullptr)
      .CheckLaunches(order, launched);
}

}  // namespace penstock::planner
