#include "planner/simulator/simulated_network.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/plan_peers.h"
#include "planner/simulator/replica_classes.h"

namespace penstock::planner {
namespace {

class NetworkBuilder {
 public:
  NetworkBuilder(const FoldedPlan& folded, const Machine& machine, const PlanPeers& peers,
                 const GroupPlaces& places, const ReplicaClasses& classes)
      : folded_(folded), machine_(machine), peers_(peers), places_(places), classes_(classes) {}

  SimulatedNetwork Run() {
    const Plan& common = folded_.common;
    Plan& plan = network_.plan;
    plan.policy = common.policy;
    plan.num_microbatches = common.num_microbatches;
    plan.kernels = folded_.is_folded() ? folded_.kernels : common.kernels;
    for (const StagePlan& stage : common.stages) plan.stages.push_back({{}, stage.order});
    AddMeetings();
    network_.class_of = classes_.of_device;
    network_.num_alike.assign(classes_.num_devices, 0);
    plan.devices.reserve(classes_.num_devices);
    for (uint32_t d = 0; d < classes_.of_device.size(); ++d) {
      const uint32_t c = classes_.of_device[d];
      if (++network_.num_alike[c] == 1) AddDevice(d);
    }
    return std::move(network_);
  }

 private:
  // A collective or transfer of each class of groups of each meeting.
  void AddMeetings() {
    std::vector<std::vector<uint32_t>> first_of_class(peers_.sets().size());
    std::vector<std::vector<std::shared_ptr<const std::vector<uint32_t>>>> links(
        peers_.sets().size());
    for (uint32_t s = 0; s < peers_.sets().size(); ++s) {
      for (uint32_t g = 0; g < classes_.of_group[s].size(); ++g) {
        if (classes_.of_group[s][g] < first_of_class[s].size()) continue;
        first_of_class[s].push_back(g);
        std::vector<uint32_t> of_group;
        for (const uint32_t link : places_.links[s][g]) {
          const uint32_t c = classes_.of_link[link];
          of_group.push_back(c);
          if (c >= network_.link_bytes_per_s.size()) network_.link_bytes_per_s.resize(c + 1);
          network_.link_bytes_per_s[c] = places_.link_bytes_per_s[link];
        }
        std::sort(of_group.begin(), of_group.end());
        of_group.erase(std::unique(of_group.begin(), of_group.end()), of_group.end());
        links[s].push_back(std::make_shared<const std::vector<uint32_t>>(std::move(of_group)));
      }
    }
    Plan& plan = network_.plan;
    for (uint32_t m = 0; m < peers_.num_meetings(); ++m) {
      first_target_.push_back(static_cast<uint32_t>(
          peers_.IsTransfer(m) ? plan.transfers.size() : plan.collectives.size()));
      const uint32_t s = peers_.SetOf(m);
      for (uint32_t c = 0; c < first_of_class[s].size(); ++c) {
        const uint32_t g = first_of_class[s][c];
        const std::vector<uint32_t>& devices = peers_.DevicesOf(m, g);
        Route& route = network_.routes.emplace_back();
        if (peers_.IsTransfer(m)) {
          route = MessageRoute(machine_, devices[0], devices[1],
                               static_cast<double>(peers_.MessageBytes(m, g)));
          plan.transfers.emplace_back();
        } else {
          const CollectiveSpec& spec = peers_.SpecOf(m, g);
          const GroupShape& shape = places_.shape_of[places_.shapes[s][g]];
          route = spec.kind == CollectiveKind::kPermute
                      ? PermuteRoute(machine_, shape, spec, devices)
                      : CollectiveRoute(machine_, shape, spec.kind,
                                        CollectiveBytes(spec, devices.size()));
          CollectiveSpec& added = plan.collectives.emplace_back();
          added.kind = spec.kind;
          added.devices = devices;
        }
        route.links = links[s][c];
      }
    }
  }

  void AddDevice(uint32_t d) {
    const DevicePlan& program = folded_.ProgramOnDevice(d);
    const auto index = static_cast<uint32_t>(network_.plan.devices.size());
    network_.devices.push_back(d);
    network_.plan.stages[program.stage].devices.push_back(index);
    DevicePlan& device = network_.plan.devices.emplace_back();
    device.stage = program.stage;
    device.phases = program.phases;
    device.channels = program.channels;
    for (ChannelPlan& channel : device.channels) channel.reg = kNone;
    device.actors.reserve(program.actors.size());
    for (const ActorPlan& actor : program.actors) {
      ActorPlan& added = device.actors.emplace_back();
      added.kind = actor.kind;
      added.kernel = actor.kernel;
      const uint32_t meeting = peers_.MeetingOf(actor);
      if (meeting == kNone) continue;
      added.target = first_target_[meeting] +
                     classes_.of_group[peers_.SetOf(meeting)][peers_.GroupOf(meeting, d)];
    }
  }

  const FoldedPlan& folded_;
  const Machine& machine_;
  const PlanPeers& peers_;
  const GroupPlaces& places_;
  const ReplicaClasses& classes_;
  SimulatedNetwork network_;
  std::vector<uint32_t> first_target_;  // of each meeting, among collectives or transfers
};

}  // namespace

absl::StatusOr<SimulatedNetwork> BuildNetwork(const FoldedPlan& folded, const Machine& machine,
                                              bool aggregates) {
  if (folded.num_devices() > machine.cluster.num_devices()) {
    return absl::InvalidArgumentError(
        StrCat("the plan needs ", folded.num_devices(), " devices, and the cluster ",
               machine.cluster.spec().name, " has ", machine.cluster.num_devices()));
  }
  ASSIGN_OR_RETURN(const PlanPeers peers, PlanPeers::Create(folded));
  const GroupPlaces places = PlaceGroups(peers, machine.cluster);
  const ReplicaClasses classes = aggregates ? FindReplicas(folded, peers, places, machine)
                                            : SeparateClasses(folded, peers, places);
  return NetworkBuilder(folded, machine, peers, places, classes).Run();
}

}  // namespace penstock::planner
