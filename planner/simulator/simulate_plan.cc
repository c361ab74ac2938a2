#include "planner/simulator/simulate_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/simulator/machine_times.h"

namespace penstock::planner {
namespace {

struct Interval {
  double begin_s = 0;
  double end_s = 0;
};

// Seconds of the window that the intervals cover; they are sorted by begin.
double Covered(const std::vector<Interval>& sorted, double begin_s, double end_s) {
  double covered = 0;
  double until = begin_s;
  for (const Interval& interval : sorted) {
    const double begin = std::max(interval.begin_s, until);
    const double end = std::min(interval.end_s, end_s);
    if (end <= begin) continue;
    covered += end - begin;
    until = end;
  }
  return covered;
}

// Keeps what observed devices do.
class Recorder : public SimulationObserver {
 public:
  Recorder(const Plan& plan, const RendezvousTable& rendezvous, const SimulationOptions& options)
      : plan_(plan), rendezvous_(rendezvous), keeps_events_(options.keeps_events) {
    index_.assign(plan.devices.size(), kNone);
    std::vector<uint32_t> order;
    for (const StagePlan& stage : plan.stages) {
      if (!stage.devices.empty()) order.push_back(stage.devices[0]);
    }
    for (uint32_t d = 0; d < plan.devices.size(); ++d) order.push_back(d);
    std::set<uint32_t> chosen;
    for (const uint32_t device : order) {
      if (chosen.size() < options.most_observed) chosen.insert(device);
    }
    observed_.assign(chosen.begin(), chosen.end());
    for (uint32_t i = 0; i < observed_.size(); ++i) index_[observed_[i]] = i;
    computing_.resize(observed_.size());
    communicating_.resize(observed_.size());
    phase_of_actor_.resize(observed_.size());
    for (uint32_t i = 0; i < observed_.size(); ++i) {
      const DevicePlan& device = plan.devices[observed_[i]];
      phase_of_actor_[i].assign(device.actors.size(), 0);
      for (uint32_t p = 0; p < device.phases.size(); ++p) {
        const PhasePlan& phase = device.phases[p];
        std::fill_n(phase_of_actor_[i].begin() + phase.first_actor, phase.num_actors, p);
      }
    }
  }

  void OnComputed(const FiredActor& fired, double begin_s, double end_s) override {
    ++firings_;
    const uint32_t i = index_[fired.device];
    if (i == kNone) return;
    computing_[i].push_back({begin_s, end_s});
    Keep(i, fired.actor, fired.number, begin_s, end_s);
  }

  void OnCommunicated(uint32_t rendezvous, uint32_t number, double begin_s, double end_s) override {
    for (const ActorRef& member : rendezvous_.Of(rendezvous)) {
      ++firings_;
      const uint32_t i = index_[member.device];
      if (i == kNone) continue;
      communicating_[i].push_back({begin_s, end_s});
      Keep(i, member.actor, number, begin_s, end_s);
    }
  }

  void Describe(Simulation* simulation) {
    const double begin = simulation->begin_s;
    const double end = begin + simulation->step_s;
    const auto by_begin = [](const Interval& a, const Interval& b) {
      return a.begin_s < b.begin_s;
    };
    for (size_t i = 0; i < observed_.size(); ++i) {
      std::vector<Interval> all = computing_[i];
      all.insert(all.end(), communicating_[i].begin(), communicating_[i].end());
      std::sort(computing_[i].begin(), computing_[i].end(), by_begin);
      std::sort(all.begin(), all.end(), by_begin);
      DeviceTimes& times = simulation->times.emplace_back();
      times.compute_s = Covered(computing_[i], begin, end);
      times.exposed_comm_s = Covered(all, begin, end) - times.compute_s;
      times.idle_s = simulation->step_s - times.compute_s - times.exposed_comm_s;
    }
    simulation->observed = observed_;
    simulation->events = std::move(events_);
    for (auto& [key, phase] : phases_) simulation->events.push_back(phase);
  }

  uint64_t firings() const { return firings_; }

 private:
  void Keep(uint32_t i, uint32_t actor, uint32_t number, double begin_s, double end_s) {
    if (!keeps_events_) return;
    const uint32_t device = observed_[i];
    const uint32_t p = phase_of_actor_[i][actor];
    const uint32_t per_step = FiringsPerStep(plan_, plan_.devices[device].phases[p]);
    const SimulatedEvent event = {device,  p,    actor, number / per_step, number % per_step,
                                  begin_s, end_s};
    events_.push_back(event);
    const auto [it, is_new] = phases_.try_emplace({device, p, number}, event);
    SimulatedEvent& phase = it->second;
    phase.actor = kNone;
    phase.begin_s = std::min(phase.begin_s, begin_s);
    phase.end_s = std::max(phase.end_s, end_s);
  }

  const Plan& plan_;
  const RendezvousTable& rendezvous_;
  const bool keeps_events_;
  std::vector<uint32_t> index_;  // of each device among the observed; kNone: it is not
  std::vector<uint32_t> observed_;
  uint64_t firings_ = 0;
  // Of each observed device.
  std::vector<std::vector<Interval>> computing_;
  std::vector<std::vector<Interval>> communicating_;
  std::vector<std::vector<uint32_t>> phase_of_actor_;
  std::vector<SimulatedEvent> events_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, SimulatedEvent> phases_;
};

}  // namespace

double Simulation::exposed_comm_s() const {
  double sum = 0;
  for (const DeviceTimes& device : times) sum += device.exposed_comm_s;
  return times.empty() ? 0 : sum / static_cast<double>(times.size());
}

double Simulation::bubble() const {
  double sum = 0;
  for (const DeviceTimes& device : times) sum += device.idle_s;
  return times.empty() || step_s <= 0 ? 0 : sum / static_cast<double>(times.size()) / step_s;
}

absl::StatusOr<Simulation> SimulatePlan(const Plan& plan, const graph::OpRegistry& ops,
                                        const PolicyRegistry& policies, const Machine& machine,
                                        const SimulationOptions& options) {
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  if (num_devices > machine.cluster.num_devices()) {
    return absl::InvalidArgumentError(
        StrCat("the plan needs ", num_devices, " devices, and the cluster ",
               machine.cluster.spec().name, " has ", machine.cluster.num_devices()));
  }
  PhaseWorkspaceBytes workspace_bytes;  // not asked for
  for (const DevicePlan& device : plan.devices) {
    workspace_bytes.emplace_back(device.phases.size(), 0);
  }
  const RendezvousTable rendezvous = FindRendezvous(plan);
  Recorder recorder(plan, rendezvous, options);
  MachineTimes times(plan, ops, rendezvous, machine, &recorder);
  ASSIGN_OR_RETURN(const FiringResult fired,
                   FirePlan(plan, policies, rendezvous, workspace_bytes, &times));
  Simulation simulation;
  const std::vector<double>& ends = fired.step_ends_s;
  simulation.step = static_cast<uint32_t>(ends.size() - 2);
  simulation.begin_s = ends[simulation.step - 1];
  simulation.step_s = ends[simulation.step] - simulation.begin_s;
  simulation.firings = fired.firings * ends.size();
  recorder.Describe(&simulation);
  if (simulation.step_s > 0) {
    simulation.mfu = times.ComputedShareOfASecond() / simulation.step_s;
  }
  return simulation;
}

}  // namespace penstock::planner
