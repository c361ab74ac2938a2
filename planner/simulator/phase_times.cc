#include "planner/simulator/phase_times.h"

#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/cluster/group_shape.h"
#include "planner/plan/plan_peers.h"
#include "planner/simulator/kernel_table.h"
#include "planner/simulator/machine_resources.h"

namespace penstock::planner {
namespace {

std::vector<uint32_t> Iota(uint32_t size) {
  std::vector<uint32_t> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class PhasePredictor {
 public:
  PhasePredictor(const FoldedPlan& plan, const graph::OpRegistry& ops, const Machine& machine,
                 const PlanPeers& peers)
      : machine_(machine),
        peers_(peers),
        kernels_(plan.is_folded() ? plan.kernels : plan.common.kernels, ops, machine,
                 Iota(plan.num_devices())) {}

  double Seconds(const DevicePlan& program, const PhasePlan& phase, uint32_t device) {
    double seconds = 0;
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const ActorPlan& actor = program.actors[a];
      if (actor.kernel != kNone) {
        seconds += kernels_.Seconds(actor.kernel, device);
      } else if (const uint32_t rendezvous = peers_.MeetingOf(actor); rendezvous != kNone) {
        seconds += CommunicationSeconds(rendezvous, device);
      }
    }
    return seconds;
  }

 private:
  double CommunicationSeconds(uint32_t rendezvous, uint32_t device) {
    const uint32_t group = peers_.GroupOf(rendezvous, device);
    const std::vector<uint32_t>& devices = peers_.DevicesOf(rendezvous, group);
    if (peers_.IsTransfer(rendezvous)) {
      return MessageRoute(machine_, devices[0], devices[1],
                          static_cast<double>(peers_.MessageBytes(rendezvous, group)))
          .seconds;
    }
    const auto [it, is_new] = shapes_.try_emplace({peers_.SetOf(rendezvous), group});
    if (is_new) {
      it->second = ShapeOf(machine_.cluster, std::vector<int64_t>(devices.begin(), devices.end()));
    }
    const CollectiveSpec& spec = peers_.SpecOf(rendezvous, group);
    return spec.kind == CollectiveKind::kPermute
               ? PermuteRoute(machine_, it->second, spec, devices).seconds
               : CollectiveRoute(machine_, it->second, spec.kind,
                                 CollectiveBytes(spec, devices.size()))
                     .seconds;
  }

  const Machine& machine_;
  const PlanPeers& peers_;
  const KernelTable kernels_;
  std::map<std::pair<uint32_t, uint32_t>, GroupShape> shapes_;  // by set and group
};

}  // namespace

absl::Status PredictPhases(const graph::OpRegistry& ops, const Machine& machine, FoldedPlan* plan) {
  ASSIGN_OR_RETURN(const PlanPeers peers, PlanPeers::Create(*plan));
  PhasePredictor predictor(*plan, ops, machine, peers);
  for (const uint32_t device : FirstOfPrograms(*plan)) {
    DevicePlan& program =
        plan->is_folded() ? plan->programs[plan->ProgramOf(device)] : plan->common.devices[device];
    for (PhasePlan& phase : program.phases) {
      phase.predicted_s = predictor.Seconds(program, phase, device);
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
