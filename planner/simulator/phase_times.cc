#include "planner/simulator/phase_times.h"

#include <algorithm>
#include <array>
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
        specs_(plan.is_folded() ? plan.kernels : plan.common.kernels),
        kernels_(specs_, ops, machine, Iota(plan.num_devices())) {}

  double Seconds(const DevicePlan& program, const PhasePlan& phase, uint32_t device) {
    const auto begin = program.actors.begin() + phase.first_actor;
    const bool has_copies =
        phase.lane != Lane::kFloating && HasHostLink(machine_.cluster.KindOf(device)) &&
        std::any_of(begin, begin + phase.num_actors,
                    [](const ActorPlan& actor) { return actor.kind == ActorKind::kCopy; });
    if (has_copies) return SecondsWithCopies(program, phase, device);
    double seconds = 0;
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      seconds += SecondsOf(program.actors[a], device);
    }
    return seconds;
  }

 private:
  double SecondsOf(const ActorPlan& actor, uint32_t device) {
    if (actor.kernel != kNone) return kernels_.Seconds(actor.kernel, device);
    const uint32_t rendezvous = peers_.MeetingOf(actor);
    return rendezvous == kNone ? 0 : CommunicationSeconds(rendezvous, device);
  }

  // Copies begin when the kernels before them have ended, and go on beside what follows, up to what
  // waits for them.
  double SecondsWithCopies(const DevicePlan& program, const PhasePlan& phase, uint32_t device) {
    const uint32_t end = phase.first_actor + phase.num_actors;
    const auto is_copy = [&](uint32_t a) { return program.actors[a].kind == ActorKind::kCopy; };
    std::vector<std::vector<uint32_t>> waits(phase.num_actors);  // for ends of copies, or a copy's
    for (const ChannelPlan& channel : program.channels) {
      if (channel.producer < phase.first_actor || channel.producer >= end) continue;
      if (channel.consumer < phase.first_actor || channel.consumer >= end) continue;
      if (!is_copy(channel.producer) && !is_copy(channel.consumer)) continue;
      waits[channel.consumer - phase.first_actor].push_back(channel.producer - phase.first_actor);
    }
    std::vector<double> ends_s(phase.num_actors);
    std::array<double, 2> link_free_s = {};  // by direction
    double kernels_end_s = 0;
    double free_s = 0;  // for kernels and communication
    for (uint32_t i = 0; i < phase.num_actors; ++i) {
      const ActorPlan& actor = program.actors[phase.first_actor + i];
      const bool copies = actor.kind == ActorKind::kCopy;
      double& lane_s = copies ? link_free_s[IsToHost(actor) ? 1 : 0] : free_s;
      double begin_s = std::max(lane_s, copies ? kernels_end_s : 0);
      for (const uint32_t before : waits[i]) begin_s = std::max(begin_s, ends_s[before]);
      ends_s[i] = lane_s = begin_s + SecondsOf(actor, device);
      if (!copies && actor.kernel != kNone) kernels_end_s = ends_s[i];
    }
    return std::max({free_s, link_free_s[0], link_free_s[1]});
  }

  bool IsToHost(const ActorPlan& copy) const { return specs_[copy.kernel].op == "to_host"; }

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
  const std::vector<KernelPlan>& specs_;
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
