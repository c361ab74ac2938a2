#include "planner/simulator/simulate_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/simulator/machine_times.h"
#include "planner/simulator/simulated_network.h"

namespace penstock::planner {
namespace {

// The devices that are observed: all, or the first of each stage and others after them.
std::vector<uint32_t> ObservedDevices(const SimulatedNetwork& network, uint32_t most_observed) {
  std::vector<uint32_t> order;
  for (const StagePlan& stage : network.plan.stages) {
    if (!stage.devices.empty()) order.push_back(network.devices[stage.devices[0]]);
  }
  for (uint32_t d = 0; d < network.class_of.size(); ++d) order.push_back(d);
  std::set<uint32_t> chosen;
  for (const uint32_t device : order) {
    if (chosen.size() < most_observed) chosen.insert(device);
  }
  return {chosen.begin(), chosen.end()};
}

// Keeps what observed devices do, or those that stand for them.
class Recorder : public SimulationObserver {
 public:
  Recorder(const SimulatedNetwork& network, const RendezvousTable& rendezvous,
           const SimulationOptions& options)
      : network_(network),
        plan_(network.plan),
        rendezvous_(rendezvous),
        keeps_events_(options.keeps_events),
        observed_(ObservedDevices(network, options.most_observed)),
        index_(plan_.devices.size(), kNone) {
    for (const uint32_t device : observed_) {
      uint32_t& index = index_[network.class_of[device]];
      if (index != kNone) continue;
      index = static_cast<uint32_t>(fired_.size());
      fired_.push_back(network.class_of[device]);
    }
    activities_.resize(fired_.size());
    phase_of_actor_.resize(fired_.size());
    for (uint32_t i = 0; i < fired_.size(); ++i) {
      const DevicePlan& device = plan_.devices[fired_[i]];
      phase_of_actor_[i].assign(device.actors.size(), 0);
      for (uint32_t p = 0; p < device.phases.size(); ++p) {
        const PhasePlan& phase = device.phases[p];
        std::fill_n(phase_of_actor_[i].begin() + phase.first_actor, phase.num_actors, p);
      }
    }
  }

  void OnComputed(const FiredActor& fired, double begin_s, double end_s) override {
    const uint32_t i = index_[fired.device];
    if (i == kNone) return;
    activities_[i].AddComputation(begin_s, end_s);
    Keep(i, fired.actor, fired.number, begin_s, end_s);
  }

  void OnCopied(const FiredActor& fired, double begin_s, double end_s) override {
    const uint32_t i = index_[fired.device];
    if (i == kNone) return;
    activities_[i].AddCommunication(begin_s, end_s);
    Keep(i, fired.actor, fired.number, begin_s, end_s);
  }

  void OnCommunicated(uint32_t rendezvous, uint32_t number, double begin_s, double end_s) override {
    for (const ActorRef& member : rendezvous_.Of(rendezvous)) {
      const uint32_t i = index_[member.device];
      if (i == kNone) continue;
      activities_[i].AddCommunication(begin_s, end_s);
      Keep(i, member.actor, number, begin_s, end_s);
    }
  }

  void Describe(Simulation* simulation) {
    const double begin = simulation->begin_s;
    const double end = begin + simulation->step_s;
    std::vector<DeviceTimes> of_fired;
    for (const DeviceActivity& activity : activities_) {
      of_fired.push_back(activity.TimesBetween(begin, end));
    }
    for (const uint32_t device : observed_) {
      simulation->times.push_back(of_fired[index_[network_.class_of[device]]]);
    }
    simulation->observed = observed_;
    simulation->events = std::move(events_);
    for (auto& [key, phase] : phases_) simulation->events.push_back(phase);
  }

 private:
  void Keep(uint32_t i, uint32_t actor, uint32_t number, double begin_s, double end_s) {
    if (!keeps_events_) return;
    const uint32_t device = network_.devices[fired_[i]];
    const uint32_t p = phase_of_actor_[i][actor];
    const uint32_t per_step = FiringsPerStep(plan_, plan_.devices[fired_[i]].phases[p]);
    const SimulatedEvent event = {device,  p,    actor, number / per_step, number % per_step,
                                  begin_s, end_s};
    events_.push_back(event);
    const auto [it, is_new] = phases_.try_emplace({device, p, number}, event);
    SimulatedEvent& phase = it->second;
    phase.actor = kNone;
    phase.begin_s = std::min(phase.begin_s, begin_s);
    phase.end_s = std::max(phase.end_s, end_s);
  }

  const SimulatedNetwork& network_;
  const Plan& plan_;
  const RendezvousTable& rendezvous_;
  const bool keeps_events_;
  const std::vector<uint32_t> observed_;
  std::vector<uint32_t> index_;  // of each device of plan_ among fired_; kNone: it is not
  std::vector<uint32_t> fired_;  // devices of plan_
  // Of each of these.
  std::vector<DeviceActivity> activities_;
  std::vector<std::vector<uint32_t>> phase_of_actor_;
  std::vector<SimulatedEvent> events_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, SimulatedEvent> phases_;
};

}  // namespace

absl::StatusOr<Simulation> SimulatePlan(const FoldedPlan& plan, const graph::OpRegistry& ops,
                                        const PolicyRegistry& policies, const Machine& machine,
                                        const SimulationOptions& options) {
  ASSIGN_OR_RETURN(const SimulatedNetwork network, BuildNetwork(plan, machine, options.aggregates));
  PhaseWorkspaceBytes workspace_bytes;  // not asked for
  for (const DevicePlan& device : network.plan.devices) {
    workspace_bytes.emplace_back(device.phases.size(), 0);
  }
  const RendezvousTable rendezvous = FindRendezvous(network.plan);
  Recorder recorder(network, rendezvous, options);
  MachineTimes times(network, ops, rendezvous, machine, &recorder);
  ASSIGN_OR_RETURN(const FiringResult fired,
                   FirePlan(network.plan, policies, rendezvous, workspace_bytes, &times));
  Simulation simulation;
  const std::vector<double>& ends = fired.step_ends_s;
  simulation.step = static_cast<uint32_t>(ends.size() - 2);
  simulation.begin_s = ends[simulation.step - 1];
  simulation.step_s = ends[simulation.step] - simulation.begin_s;
  simulation.firings = fired.firings * ends.size();
  simulation.num_fired_devices = static_cast<uint32_t>(network.devices.size());
  for (size_t s = 0; s < fired.stage_orders.size(); ++s) {
    const std::vector<uint32_t>& order = fired.stage_orders[s];
    const size_t size = fired.is_stage_planned[s] ? order.size() : order.size() / ends.size();
    const size_t begin = fired.is_stage_planned[s] ? 0 : simulation.step * size;
    simulation.stage_orders.emplace_back(order.begin() + static_cast<ptrdiff_t>(begin),
                                         order.begin() + static_cast<ptrdiff_t>(begin + size));
  }
  for (const DevicePlan& device : network.plan.devices) {
    simulation.num_fired_actors += device.actors.size();
  }
  recorder.Describe(&simulation);
  if (simulation.step_s > 0) {
    const MachineTimes::ComputedShare computed = times.ComputedShareOfASecond();
    simulation.mfu = computed.model / simulation.step_s;
    simulation.hfu = computed.all / simulation.step_s;
  }
  return simulation;
}

absl::StatusOr<Simulation> SimulatePlan(const Plan& plan, const graph::OpRegistry& ops,
                                        const PolicyRegistry& policies, const Machine& machine,
                                        const SimulationOptions& options) {
  FoldedPlan spelled_out;
  spelled_out.common = plan;
  return SimulatePlan(spelled_out, ops, policies, machine, options);
}

}  // namespace penstock::planner
