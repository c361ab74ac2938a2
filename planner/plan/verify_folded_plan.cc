#include "planner/plan/verify_folded_plan.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/access_order.h"
#include "planner/plan/check_memory.h"
#include "planner/plan/check_structure.h"
#include "planner/plan/coordinates.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/plan/show_plan.h"
#include "planner/plan/verify_plan.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;

class MeetingCheck {
 public:
  MeetingCheck(const FoldedPlan& folded, const Plan& programs)
      : folded_(folded),
        programs_(programs),
        num_classes_(folded.num_classes()),
        rendezvous_(FindRendezvous(programs)) {}

  absl::Status Run() {
    for (uint32_t c = 0; c < folded_.collectives.size(); ++c) {
      RETURN_IF_ERROR(CheckCollective(c));
    }
    for (uint32_t t = 0; t < programs_.transfers.size(); ++t) RETURN_IF_ERROR(CheckTransfer(t));
    for (size_t i = 0; i < folded_.states.size(); ++i) {
      if (folded_.states[i].registers.size() == num_classes_) continue;
      return absl::InvalidArgumentError(StrCat("state '", folded_.common.states[i].name,
                                               "' has no register on some device of its stage"));
    }
    return absl::OkStatus();
  }

 private:
  const PhasePlan& PhaseOf(const ActorRef& ref) const {
    const DevicePlan& device = programs_.devices[ref.device];
    return device.phases[PhaseOfActor(device, ref.actor)];
  }
  std::string Describe(const ActorRef& ref) const {
    return DescribeActor(programs_, ref.device, ref.actor);
  }

  absl::Status CheckRate(const ActorRef& ref, bool per_microbatch) const {
    if (PhaseOf(ref).per_microbatch == per_microbatch) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(Describe(ref), " does not run once a ",
                                             per_microbatch ? "micro-batch" : "step",
                                             ", as what it communicates does"));
  }

  absl::Status CheckBytes(const ActorRef& ref, const OperandPlan& operand,
                          uint64_t num_bytes) const {
    if (operand.reg == kNone && num_bytes == 0) return absl::OkStatus();
    const std::vector<RegisterPlan>& registers = programs_.devices[ref.device].registers;
    if (operand.reg != kNone && operand.offset <= registers[operand.reg].slot_bytes &&
        num_bytes <= registers[operand.reg].slot_bytes - operand.offset) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(StrCat(Describe(ref), " communicates ", num_bytes,
                                             " bytes, which its register cannot hold"));
  }

  // Each program of the stage runs it once, all in one place, with room for its data.
  absl::Status CheckCollective(uint32_t c) {
    const FoldedCollective& collective = folded_.collectives[c];
    const absl::Span<const ActorRef> actors = rendezvous_.Of(c);
    if (actors.size() != num_classes_) {
      return absl::InvalidArgumentError(StrCat("collective ", c, " is run by ", actors.size(),
                                               " of ", num_classes_, " programs of stage ",
                                               collective.stage));
    }
    for (uint32_t i = 0; i < num_classes_; ++i) {
      if (actors[i].device != collective.stage * num_classes_ + i) {
        return absl::InvalidArgumentError(
            StrCat(Describe(actors[i]), " runs collective ", c, " of stage ", collective.stage));
      }
      RETURN_IF_ERROR(CheckRate(actors[i], collective.per_microbatch));
      const PhasePlan& phase = PhaseOf(actors[i]);
      const PhasePlan& first = PhaseOf(actors[0]);
      if (phase.lane != first.lane || (phase.lane == Lane::kCompute &&
                                       (phase.kind != first.kind || phase.chunk != first.chunk))) {
        return absl::InvalidArgumentError(
            StrCat("collective ", c, " is run in different phases: by ", Describe(actors[0]),
                   " and ", Describe(actors[i])));
      }
    }
    return CheckSizes(c, actors);
  }

  // Against every group: its members may be of several classes.
  absl::Status CheckSizes(uint32_t c, absl::Span<const ActorRef> actors) {
    const FoldedCollective& collective = folded_.collectives[c];
    std::vector<std::vector<uint32_t>>& groups = groups_[collective.axes];
    if (groups.empty()) groups = GroupDevices(folded_.mesh, collective.axes);
    if (collective.specs.size() != 1 && collective.specs.size() != groups.size()) {
      return absl::InvalidArgumentError(StrCat("collective ", c, " has ", collective.specs.size(),
                                               " descriptions for ", groups.size(), " groups"));
    }
    // With one description, groups differ only in who is in them: a class of devices counts once at
    // each rank.
    const bool is_one = collective.specs.size() == 1;
    std::vector<bool> is_checked(is_one ? groups[0].size() * num_classes_ : 0);
    for (size_t g = 0; g < groups.size(); ++g) {
      const CollectiveSpec& spec = collective.specs[is_one ? 0 : g];
      for (size_t rank = 0; rank < groups[g].size(); ++rank) {
        const uint32_t class_of_rank = folded_.class_of[groups[g][rank]];
        if (is_one) {
          const size_t place = rank * num_classes_ + class_of_rank;
          if (is_checked[place]) continue;
          is_checked[place] = true;
        }
        const ActorRef& ref = actors[class_of_rank];
        const ActorPlan& actor = programs_.devices[ref.device].actors[ref.actor];
        const auto bytes = [&](int64_t count) {
          return static_cast<uint64_t>(count) * ByteSize(spec.dtype);
        };
        const bool needs_input = spec.kind != CollectiveKind::kBroadcast || rank == spec.root ||
                                 actor.inputs[0].reg != kNone;
        const int r = static_cast<int>(rank);
        if (actor.inputs.size() != NumTensors(spec)) {
          return absl::InvalidArgumentError(StrCat(Describe(ref), " has ", actor.inputs.size(),
                                                   " inputs, expected ", NumTensors(spec)));
        }
        for (size_t t = 0; t < NumTensors(spec); ++t) {
          if (needs_input) {
            RETURN_IF_ERROR(CheckBytes(ref, actor.inputs[t], bytes(InputCount(spec, r, t))));
          }
          RETURN_IF_ERROR(CheckBytes(ref, actor.outputs[t], bytes(OutputCount(spec, r, t))));
        }
      }
      if (is_one && num_classes_ == 1) break;
    }
    return absl::OkStatus();
  }

  absl::Status CheckTransfer(uint32_t t) const {
    const FoldedTransfer& folded = folded_.transfers[t / num_classes_];
    const TransferPlan& transfer = programs_.transfers[t];
    const absl::Span<const ActorRef> actors = rendezvous_.Of(programs_.collectives.size() + t);
    if (actors.size() != 2) {
      return absl::InvalidArgumentError(
          StrCat("transfer ", t, " has ", actors.size(), " actors, expected a send and a recv"));
    }
    const uint32_t first_device = folded_.FirstOfClasses()[t % num_classes_];
    ASSIGN_OR_RETURN(const TilePlan tile, TileOf(folded_.mesh, folded_.shardings[folded.sharding],
                                                 folded.type, first_device));
    for (const ActorRef& ref : actors) {
      const ActorPlan& actor = programs_.devices[ref.device].actors[ref.actor];
      const bool is_send = actor.kind == ActorKind::kSend;
      if (ref.device != (is_send ? transfer.source : transfer.destination)) {
        return absl::InvalidArgumentError(
            StrCat(Describe(ref), " takes part in a transfer of other stages"));
      }
      RETURN_IF_ERROR(CheckRate(ref, transfer.per_microbatch));
      RETURN_IF_ERROR(
          CheckBytes(ref, is_send ? actor.inputs[0] : actor.outputs[0], tile.num_bytes()));
    }
    return absl::OkStatus();
  }

  const FoldedPlan& folded_;
  const Plan& programs_;
  const uint32_t num_classes_;
  const RendezvousTable rendezvous_;
  std::map<std::vector<AxisRef>, std::vector<std::vector<uint32_t>>> groups_;
};

absl::StatusOr<PlanVerification> VerifyPrograms(const FoldedPlan& folded,
                                                const PolicyRegistry& policies) {
  const Plan programs = PlanOfPrograms(folded);
  RETURN_IF_ERROR(CheckDevices(programs));
  RETURN_IF_ERROR(MeetingCheck(folded, programs).Run());
  ASSIGN_OR_RETURN(const PhaseWorkspaceBytes workspace_bytes, CheckMemory(programs));
  RETURN_IF_ERROR(CheckAccessOrder(programs));
  RETURN_IF_ERROR(CheckCollectiveOrder(programs));
  ASSIGN_OR_RETURN(FiringResult result,
                   FirePlan(programs, policies, FindRendezvous(programs), workspace_bytes));
  return PlanVerification{std::move(result.peak_live_bytes), result.firings};
}

}  // namespace

absl::StatusOr<PlanVerification> VerifyFoldedPlan(const FoldedPlan& folded,
                                                  const PolicyRegistry& policies) {
  if (!folded.is_folded()) return VerifyPlan(folded.common, policies);
  absl::StatusOr<PlanVerification> verified = VerifyPrograms(folded, policies);
  if (verified.status().code() != absl::StatusCode::kFailedPrecondition) return verified;
  ASSIGN_OR_RETURN(const Plan plan, ExpandPlan(folded));
  ASSIGN_OR_RETURN(const PlanVerification of_devices, VerifyPlan(plan, policies));
  PlanVerification of_programs;
  of_programs.firings = of_devices.firings;
  for (const uint32_t device : FirstOfPrograms(folded)) {
    of_programs.peak_live_bytes.push_back(of_devices.peak_live_bytes[device]);
  }
  return of_programs;
}

}  // namespace penstock::planner
