#include "actors/trace/critical_path.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "actors/trace/communication_times.h"
#include "actors/trace/computation_times.h"
#include "actors/trace/interval_set_internal.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;

bool IsKnown(const planner::Plan& plan, const TraceEvent& event) {
  if (event.device >= plan.devices.size()) return false;
  const planner::DevicePlan& device = plan.devices[event.device];
  return event.phase < device.phases.size() &&
         (event.actor == kNone || event.actor < device.actors.size());
}

// The last instance of a producer that `needed` tokens take, `initial` of which are there from the
// start; -1: none.
int64_t LastInstance(int64_t needed, int64_t initial, int64_t per_instance) {
  if (needed <= initial) return -1;
  return (needed - initial + per_instance - 1) / per_instance - 1;
}

// Which act waited for which. Events are known by their index in `events`, of which those in the
// step's window are indexed.
class Dependencies {
 public:
  Dependencies(const planner::Plan& plan, absl::Span<const TraceEvent> events,
               const StepWindow& window)
      : plan_(plan), events_(SerializeComputations(plan, events)), devices_(plan.devices.size()) {
    for (uint32_t d = 0; d < devices_.size(); ++d) LinkDevice(d);
    for (uint32_t i = 0; i < events_.size(); ++i) {
      const TraceEvent& event = events_[i];
      if (!IsKnown(plan_, event) || event.end_ns <= window.begin_ns ||
          event.begin_ns >= window.end_ns || event.end_ns < event.begin_ns) {
        continue;
      }
      AddEvent(i);
    }
    places_.resize(events_.size());
    for (Device& device : devices_) Sort(device);
  }

  const TraceEvent& event(uint32_t i) const { return events_[i]; }
  const planner::ActorPlan& ActorOf(uint32_t i) const {
    return plan_.devices[events_[i].device].actors[events_[i].actor];
  }
  bool IsCommunication(uint32_t i) const { return planner::IsCommunication(ActorOf(i).kind); }

  // The act of the step that ended last; kNone: there is none.
  uint32_t LastOf(const StepWindow& window) const {
    uint32_t last = kNone;
    for (const auto& [run, i] : runs_) {
      if (events_[i].step == window.step && events_[i].end_ns <= window.end_ns) {
        last = Later(last, i);
      }
    }
    return last;
  }

  // The member of a communication that started last before it ended; other acts give themselves.
  uint32_t LastStarter(uint32_t i) const {
    if (!IsCommunication(i)) return i;
    uint32_t last = i;
    for (const uint32_t member : exchanges_.at(ExchangeOf(i))) {
      const int64_t begin_ns = events_[member].begin_ns;
      if (begin_ns > events_[last].begin_ns && begin_ns < events_[i].end_ns) last = member;
    }
    return last;
  }

  // The act that ended last among those that `i` waited for; kNone: none in the window.
  uint32_t PredecessorOf(uint32_t i) {
    const TraceEvent& event = events_[i];
    const Device& device = devices_[event.device];
    uint32_t best = kNone;
    for (const uint32_t producer : device.producers[event.actor]) {
      Consider(Run(event.device, producer, event.step, event.microbatch), event, &best);
    }
    Consider(OpenerOf({event.device, event.phase, event.step, event.microbatch}), event, &best);
    Consider(ComputationBefore(i), event, &best);
    return best;
  }

  std::vector<Interval> Computations(uint32_t device) const {
    std::vector<Interval> intervals;
    for (const uint32_t i : devices_[device].computations) {
      intervals.emplace_back(events_[i].begin_ns, events_[i].end_ns);
    }
    return intervals;
  }

 private:
  // A phase or actor of a device, in a step and micro-batch.
  using Instance = std::tuple<uint32_t, uint32_t, int64_t, uint32_t>;
  // Whether it is a collective, its index, step and micro-batch.
  using Exchange = std::tuple<bool, uint32_t, int64_t, uint32_t>;

  // A channel to another phase, as one side waits for the other: the phase's instance n waits until
  // `per_instance` tokens (or credits) for each of the n + 1 instances have come from `actor`.
  struct Gate {
    uint32_t actor = 0;
    uint32_t phase = 0;  // of the actor
    int64_t initial = 0;
    int64_t needed = 1;
    int64_t per_instance = 1;
  };

  struct Device {
    std::vector<std::vector<uint32_t>> producers;  // of each actor, in its phase
    std::vector<std::vector<Gate>> gates;          // of each phase
    std::vector<uint32_t> computations;            // by end
    std::vector<uint32_t> phase_runs[3];           // of each lane, by end
  };

  void LinkDevice(uint32_t d) {
    const planner::DevicePlan& plan = plan_.devices[d];
    Device& device = devices_[d];
    device.producers.resize(plan.actors.size());
    device.gates.resize(plan.phases.size());
    std::vector<uint32_t> phase_of(plan.actors.size(), 0);
    for (uint32_t p = 0; p < plan.phases.size(); ++p) {
      const planner::PhasePlan& phase = plan.phases[p];
      std::fill_n(phase_of.begin() + phase.first_actor, phase.num_actors, p);
    }
    for (const planner::ChannelPlan& channel : plan.channels) {
      const uint32_t from = phase_of[channel.producer];
      const uint32_t to = phase_of[channel.consumer];
      if (from == to) {
        device.producers[channel.consumer].push_back(channel.producer);
        continue;
      }
      device.gates[to].push_back(
          {channel.producer, from, channel.initial, channel.consume, channel.produce});
      device.gates[from].push_back({channel.consumer, to,
                                    int64_t{channel.capacity} - channel.initial, channel.produce,
                                    channel.consume});
    }
  }

  void AddEvent(uint32_t i) {
    const TraceEvent& event = events_[i];
    Device& device = devices_[event.device];
    if (event.actor == kNone) {
      const Lane lane = plan_.devices[event.device].phases[event.phase].lane;
      device.phase_runs[static_cast<size_t>(lane)].push_back(i);
      return;
    }
    runs_[{event.device, event.actor, event.step, event.microbatch}] = i;
    const auto [last, is_new] = last_acts_.try_emplace(
        Instance(event.device, event.phase, event.step, event.microbatch), i);
    if (!is_new) last->second = Later(last->second, i);
    if (IsCommunication(i)) {
      exchanges_[ExchangeOf(i)].push_back(i);
    } else {
      device.computations.push_back(i);
    }
  }

  void Sort(Device& device) {
    const auto by_end = [this](uint32_t a, uint32_t b) {
      return std::pair(events_[a].end_ns, events_[a].begin_ns) <
             std::pair(events_[b].end_ns, events_[b].begin_ns);
    };
    for (std::vector<uint32_t>& runs : device.phase_runs) {
      std::sort(runs.begin(), runs.end(), by_end);
      for (size_t k = 1; k < runs.size(); ++k) {
        const TraceEvent& event = events_[runs[k]];
        lane_before_[{event.device, event.phase, event.step, event.microbatch}] = runs[k - 1];
      }
    }
    std::sort(device.computations.begin(), device.computations.end(), by_end);
    for (uint32_t k = 0; k < device.computations.size(); ++k) places_[device.computations[k]] = k;
  }

  Exchange ExchangeOf(uint32_t i) const {
    const planner::ActorPlan& actor = ActorOf(i);
    return {actor.kind == ActorKind::kCollective, actor.target, events_[i].step,
            events_[i].microbatch};
  }

  uint32_t Later(uint32_t a, uint32_t b) const {
    if (a == kNone || b == kNone) return a == kNone ? b : a;
    return events_[b].end_ns > events_[a].end_ns ? b : a;
  }

  // What `waiter` waited for had ended when it began.
  void Consider(uint32_t candidate, const TraceEvent& waiter, uint32_t* best) const {
    if (candidate != kNone && events_[candidate].end_ns <= waiter.begin_ns) {
      *best = Later(*best, candidate);
    }
  }

  uint32_t Run(uint32_t device, uint32_t actor, int64_t step, uint32_t microbatch) const {
    const auto it = runs_.find(Instance(device, actor, step, microbatch));
    return it == runs_.end() ? kNone : it->second;
  }

  // The computation before an act on its device.
  uint32_t ComputationBefore(uint32_t i) const {
    const std::vector<uint32_t>& sorted = devices_[events_[i].device].computations;
    if (!IsCommunication(i)) return places_[i] > 0 ? sorted[places_[i] - 1] : kNone;
    const int64_t time = events_[i].begin_ns;
    auto it = std::upper_bound(sorted.begin(), sorted.end(), time,
                               [this](int64_t at, uint32_t k) { return at < events_[k].end_ns; });
    // One without a duration at the same time may well come after the communication.
    while (it != sorted.begin()) {
      if (events_[*--it].begin_ns < time) return *it;
    }
    return kNone;
  }

  int64_t NumberOf(bool per_microbatch, int64_t step, uint32_t microbatch) const {
    return per_microbatch ? step * plan_.num_microbatches + microbatch : step;
  }

  // The act that ended last of those that an instance of a phase waited for before it started.
  uint32_t OpenerOf(const Instance& instance) {
    const auto [known, is_new] = openers_.try_emplace(instance, kNone);
    if (!is_new) return known->second;
    const auto& [d, p, step, microbatch] = instance;
    const planner::PhasePlan& phase = plan_.devices[d].phases[p];
    const int64_t number = NumberOf(phase.per_microbatch, step, microbatch);
    uint32_t best = kNone;
    for (const Gate& gate : devices_[d].gates[p]) {
      const int64_t last = LastInstance((number + 1) * gate.needed, gate.initial,
                                        std::max<int64_t>(gate.per_instance, 1));
      if (last < 0) continue;
      const bool per_microbatch = plan_.devices[d].phases[gate.phase].per_microbatch;
      const int64_t count = per_microbatch ? plan_.num_microbatches : 1;
      best = Later(best, Run(d, gate.actor, last / count, static_cast<uint32_t>(last % count)));
    }
    // The instance before it in its lane; of a floating phase, its own.
    if (phase.lane == Lane::kFloating) {
      if (number > 0) {
        const int64_t count = phase.per_microbatch ? plan_.num_microbatches : 1;
        best = Later(best, LastAct({d, p, (number - 1) / count,
                                    static_cast<uint32_t>((number - 1) % count)}));
      }
    } else {
      best = Later(best, LaneBefore(instance));
    }
    return openers_[instance] = best;
  }

  uint32_t LaneBefore(const Instance& instance) const {
    const auto it = lane_before_.find(instance);
    if (it == lane_before_.end()) return kNone;
    const TraceEvent& before = events_[it->second];
    return LastAct({before.device, before.phase, before.step, before.microbatch});
  }

  uint32_t LastAct(const Instance& instance) const {
    const auto it = last_acts_.find(instance);
    return it == last_acts_.end() ? kNone : it->second;
  }

  const planner::Plan& plan_;
  std::vector<TraceEvent> events_;
  std::vector<Device> devices_;
  absl::flat_hash_map<Instance, uint32_t> runs_;       // of actors
  absl::flat_hash_map<Instance, uint32_t> last_acts_;  // of phases: the act that ended last
  absl::flat_hash_map<Exchange, std::vector<uint32_t>> exchanges_;
  absl::flat_hash_map<Instance, uint32_t> lane_before_;  // of phases: the run before it
  absl::flat_hash_map<Instance, uint32_t> openers_;      // of phases
  std::vector<uint32_t> places_;                         // of computations: in their device's
};

// `phases`: those of the device that take turns, in the window.
DeviceTime TimeOf(const IntervalSet& computing, const IntervalSet& communicating,
                  const IntervalSet& phases, const StepWindow& window) {
  DeviceTime time;
  time.compute_ns = computing.Covered(window.begin_ns, window.end_ns);
  time.communication_ns = communicating.total();
  for (const auto& [begin, end] : communicating.intervals()) {
    time.hidden_communication_ns += computing.Covered(begin, end);
  }
  time.bubble_ns = window.end_ns - window.begin_ns - time.compute_ns -
                   (time.communication_ns - time.hidden_communication_ns);
  std::vector<Interval> working = computing.intervals();
  working.insert(working.end(), communicating.intervals().begin(), communicating.intervals().end());
  const IntervalSet work(std::move(working));
  for (const auto& [begin, end] : phases.intervals()) {
    time.waiting_ns += end - begin - work.Covered(begin, end);
  }
  return time;
}

// The times, by device, in which others computed on all of its cores.
std::vector<IntervalSet> BusyCores(const std::vector<IntervalSet>& computing,
                                   const SharedCores* cores) {
  std::vector<IntervalSet> sets;
  sets.reserve(computing.size());
  for (uint32_t d = 0; d < computing.size(); ++d) {
    std::vector<std::pair<int64_t, int>> changes;  // of how many of the others compute
    const auto group_of = [cores](uint32_t device) {
      return cores != nullptr && device < cores->groups.size() ? cores->groups[device] : kNone;
    };
    const uint32_t group = group_of(d);
    if (group != kNone && group < cores->num_at_once.size()) {
      for (uint32_t other = 0; other < computing.size(); ++other) {
        if (other == d || group_of(other) != group) continue;
        for (const auto& [begin, end] : computing[other].intervals()) {
          changes.emplace_back(begin, 1);
          changes.emplace_back(end, -1);
        }
      }
      std::sort(changes.begin(), changes.end());
    }
    std::vector<Interval> busy;
    int64_t num_computing = 0;
    for (size_t i = 0; i + 1 < changes.size(); ++i) {
      num_computing += changes[i].second;
      if (num_computing >= cores->num_at_once[group]) {
        busy.emplace_back(changes[i].first, changes[i + 1].first);
      }
    }
    sets.emplace_back(std::move(busy));
  }
  return sets;
}

// The times in the window, by device, in which data of its communication moved.
std::vector<IntervalSet> Communications(const planner::Plan& plan,
                                        absl::Span<const TraceEvent> events,
                                        absl::Span<const TransferTime> times,
                                        const StepWindow& window) {
  std::vector<std::vector<Interval>> intervals(plan.devices.size());
  for (size_t i = 0; i < events.size(); ++i) {
    if (!IsCommunication(plan, events[i])) continue;
    intervals[events[i].device].emplace_back(
        std::max(times[i].begin_ns, window.begin_ns),
        std::min(times[i].begin_ns + times[i].moving_ns, window.end_ns));
  }
  std::vector<IntervalSet> sets;
  sets.reserve(intervals.size());
  for (std::vector<Interval>& list : intervals) sets.emplace_back(std::move(list));
  return sets;
}

// The times in the window, by device, in which one of its phases that take turns was under way.
std::vector<IntervalSet> PhasesThatTakeTurns(const planner::Plan& plan,
                                             absl::Span<const TraceEvent> events,
                                             const StepWindow& window) {
  std::vector<std::vector<Interval>> intervals(plan.devices.size());
  for (const TraceEvent& event : events) {
    if (!IsKnown(plan, event) || event.actor != kNone) continue;
    if (plan.devices[event.device].phases[event.phase].lane == Lane::kFloating) continue;
    intervals[event.device].emplace_back(std::max(event.begin_ns, window.begin_ns),
                                         std::min(event.end_ns, window.end_ns));
  }
  std::vector<IntervalSet> sets;
  sets.reserve(intervals.size());
  for (std::vector<Interval>& list : intervals) sets.emplace_back(std::move(list));
  return sets;
}

double Fraction(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

double CriticalPath::hidden_fraction() const {
  int64_t hidden_ns = 0;
  int64_t total_ns = 0;
  for (const DeviceTime& device : devices) {
    hidden_ns += device.hidden_communication_ns;
    total_ns += device.communication_ns;
  }
  return Fraction(hidden_ns, total_ns);
}

double CriticalPath::bubble_fraction() const {
  int64_t bubble_ns = 0;
  for (const DeviceTime& device : devices) bubble_ns += device.bubble_ns;
  return Fraction(bubble_ns, duration_ns() * static_cast<int64_t>(devices.size()));
}

CriticalPath FindCriticalPath(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                              const StepWindow& window, const SharedCores* cores) {
  CriticalPath path;
  path.step = window;
  path.step.end_ns = std::max(window.begin_ns, window.end_ns);
  Dependencies dependencies(plan, events, path.step);
  std::vector<IntervalSet> computing;
  computing.reserve(plan.devices.size());
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    computing.emplace_back(dependencies.Computations(d));
  }
  const std::vector<IntervalSet> busy_cores = BusyCores(computing, cores);
  const std::vector<TransferTime> times = TransferTimes(plan, events);

  int64_t time = path.step.end_ns;
  // Extends the path back to `begin_ns`. From `done_ns` on, the segment may have waited for a core.
  const auto add = [&](SegmentKind kind, const TraceEvent& event, int64_t begin_ns,
                       int64_t done_ns) {
    begin_ns = std::clamp(begin_ns, path.step.begin_ns, time);
    if (begin_ns == time) return;
    PathSegment segment = {
        kind,       event.device, event.actor, event.microbatch,
        event.step, begin_ns,     time,        computing[event.device].Covered(begin_ns, time)};
    if (kind == SegmentKind::kIdle) segment.actor = kNone;
    if (kind != SegmentKind::kCompute) {
      done_ns = std::clamp(done_ns, begin_ns, time);
      // While the device computed itself it did not wait.
      segment.core_wait_ns =
          std::min(busy_cores[event.device].Covered(done_ns, time),
                   time - done_ns - computing[event.device].Covered(done_ns, time));
    }
    path.segments.push_back(segment);
    time = begin_ns;
  };
  std::vector<bool> is_on_path(events.size());
  uint32_t act = dependencies.LastOf(path.step);
  uint32_t waiting = act;  // the act that could not begin before `time`
  while (act != kNone && !is_on_path[act] && time > path.step.begin_ns) {
    is_on_path[act] = true;
    add(SegmentKind::kIdle, dependencies.event(waiting), dependencies.event(act).end_ns,
        dependencies.event(act).end_ns);
    waiting = dependencies.LastStarter(act);
    const int64_t begin_ns = dependencies.event(waiting).begin_ns;
    add(dependencies.IsCommunication(act) ? SegmentKind::kCommunication : SegmentKind::kCompute,
        dependencies.event(act), begin_ns, begin_ns + times[act].moving_ns);
    act = dependencies.PredecessorOf(waiting);
  }
  if (waiting != kNone) {
    add(SegmentKind::kIdle, dependencies.event(waiting), path.step.begin_ns, path.step.begin_ns);
  } else if (time > path.step.begin_ns) {
    path.segments.push_back({.step = window.step, .begin_ns = path.step.begin_ns, .end_ns = time});
  }
  std::reverse(path.segments.begin(), path.segments.end());

  for (const PathSegment& segment : path.segments) {
    path.compute_ns += segment.computing_ns;
    path.core_wait_ns += segment.core_wait_ns;
    (segment.kind == SegmentKind::kIdle ? path.idle_ns : path.exposed_communication_ns) +=
        segment.duration_ns() - segment.computing_ns - segment.core_wait_ns;
  }
  const std::vector<IntervalSet> communicating = Communications(plan, events, times, path.step);
  const std::vector<IntervalSet> phases = PhasesThatTakeTurns(plan, events, path.step);
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    path.devices.push_back(TimeOf(computing[d], communicating[d], phases[d], path.step));
  }
  return path;
}

namespace {

int64_t EventsPerStep(const planner::Plan& plan) {
  int64_t count = 0;
  for (const planner::DevicePlan& device : plan.devices) {
    for (const planner::PhasePlan& phase : device.phases) {
      count += (int64_t{phase.num_actors} + 1) * (phase.per_microbatch ? plan.num_microbatches : 1);
    }
  }
  return count;
}

// Of each step that the trace holds events of.
using StepCounts = absl::flat_hash_map<int64_t, int64_t>;

StepCounts CountEvents(absl::Span<const TraceEvent> events) {
  StepCounts counts;
  for (const TraceEvent& event : events) ++counts[event.step];
  return counts;
}

// The windows of the steps of which the trace holds all events, without step 0 if there are others.
std::vector<StepWindow> WhollyTracedSteps(const planner::Plan& plan,
                                          absl::Span<const TraceEvent> events,
                                          absl::Span<const StepWindow> windows) {
  const int64_t events_per_step = EventsPerStep(plan);
  const StepCounts counts = CountEvents(events);
  std::vector<StepWindow> whole;
  for (const StepWindow& window : windows) {
    const auto it = counts.find(window.step);
    if (it != counts.end() && it->second == events_per_step) whole.push_back(window);
  }
  if (whole.size() > 1 && whole[0].step == 0) whole.erase(whole.begin());
  return whole;
}

}  // namespace

std::optional<StepRange> FindTracedSteps(const planner::Plan& plan,
                                         absl::Span<const TraceEvent> events) {
  const int64_t events_per_step = EventsPerStep(plan);
  std::optional<StepRange> range;
  for (const auto& [step, count] : CountEvents(events)) {
    if (count != events_per_step) continue;
    if (!range.has_value()) range = {step, step};
    range->first = std::min(range->first, step);
    range->last = std::max(range->last, step);
  }
  return range;
}

std::optional<StepWindow> MedianTracedStep(const planner::Plan& plan,
                                           absl::Span<const TraceEvent> events,
                                           absl::Span<const StepWindow> windows) {
  std::vector<StepWindow> whole = WhollyTracedSteps(plan, events, windows);
  if (whole.empty()) return std::nullopt;
  const auto middle = whole.begin() + (whole.end() - whole.begin() - 1) / 2;
  std::nth_element(whole.begin(), middle, whole.end(),
                   [](const StepWindow& a, const StepWindow& b) {
                     return a.end_ns - a.begin_ns < b.end_ns - b.begin_ns;
                   });
  return *middle;
}

namespace {

// The events, by window, that lie in it or reach into it: steps in flight beside its step keep its
// devices busy. REQUIRES: windows follow each other.
std::vector<std::vector<TraceEvent>> EventsIn(absl::Span<const StepWindow> windows,
                                              absl::Span<const TraceEvent> events) {
  std::vector<std::vector<TraceEvent>> near(windows.size());
  for (const TraceEvent& event : events) {
    const auto first = std::lower_bound(
        windows.begin(), windows.end(), event.begin_ns,
        [](const StepWindow& window, int64_t time_ns) { return window.end_ns < time_ns; });
    for (auto it = first; it != windows.end() && it->begin_ns <= event.end_ns; ++it) {
      near[static_cast<size_t>(it - windows.begin())].push_back(event);
    }
  }
  return near;
}

}  // namespace

MeanPath MeanCriticalPath(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                          absl::Span<const StepWindow> windows, int64_t max_steps,
                          const SharedCores* cores) {
  const std::vector<StepWindow> whole = WhollyTracedSteps(plan, events, windows);
  const auto num_whole = static_cast<int64_t>(whole.size());
  MeanPath mean;
  mean.num_steps = std::min(num_whole, max_steps);
  mean.device_compute_s.resize(plan.devices.size());
  mean.device_transfer_s.resize(plan.devices.size());
  mean.device_wait_s.resize(plan.devices.size());
  std::vector<StepWindow> chosen;
  for (int64_t i = 0; i < mean.num_steps; ++i) {
    chosen.push_back(whole[static_cast<size_t>(i * num_whole / mean.num_steps)]);
  }
  const std::vector<std::vector<TraceEvent>> near = EventsIn(chosen, events);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const CriticalPath path = FindCriticalPath(plan, near[i], chosen[i], cores);
    const double share = 1e-9 / static_cast<double>(mean.num_steps);
    mean.duration_s += share * static_cast<double>(path.duration_ns());
    mean.compute_s += share * static_cast<double>(path.compute_ns);
    mean.exposed_communication_s += share * static_cast<double>(path.exposed_communication_ns);
    mean.core_wait_s += share * static_cast<double>(path.core_wait_ns);
    mean.idle_s += share * static_cast<double>(path.idle_ns);
    mean.steps.push_back({chosen[i].step, path.duration_ns(), path.idle_ns});
    for (size_t d = 0; d < path.devices.size(); ++d) {
      const DeviceTime& time = path.devices[d];
      mean.device_compute_s[d] += share * static_cast<double>(time.compute_ns);
      mean.device_transfer_s[d] +=
          share * static_cast<double>(time.communication_ns - time.hidden_communication_ns);
      mean.device_wait_s[d] += share * static_cast<double>(time.waiting_ns);
    }
  }
  return mean;
}

}  // namespace penstock::actors
