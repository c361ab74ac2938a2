#include "actors/trace/register_use.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "actors/trace/communication_times.h"

namespace penstock::actors {
namespace {

using planner::ChannelPlan;
using planner::DevicePlan;
using planner::kNone;

struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Of each phase of a device, when its instances ran.
using Instances = std::vector<absl::flat_hash_map<int64_t, Interval>>;

// How a quantity changes, in any order.
class Changes {
 public:
  void Add(const Interval& interval, int64_t value) {
    if (interval.begin_ns >= interval.end_ns || value == 0) return;
    changes_.push_back({interval.begin_ns, value});
    changes_.push_back({interval.end_ns, -value});
  }

  std::vector<UseSample> Sum() && {
    std::sort(changes_.begin(), changes_.end(),
              [](const UseSample& a, const UseSample& b) { return a.at_ns < b.at_ns; });
    std::vector<UseSample> samples;
    int64_t value = 0;
    for (size_t i = 0; i < changes_.size(); ++i) {
      value += changes_[i].value;
      if (i + 1 < changes_.size() && changes_[i + 1].at_ns == changes_[i].at_ns) continue;
      if (!samples.empty() && samples.back().value == value) continue;
      samples.push_back({changes_[i].at_ns, value});
    }
    return samples;
  }

 private:
  std::vector<UseSample> changes_;
};

// Bytes of an arena that a value has for a while.
struct Occupied {
  uint64_t begin = 0;
  uint64_t end = 0;
  Interval interval;
};

// How many bytes have a value, over time. Values share bytes within a phase, of which only the
// whole time is known: then these count once.
std::vector<UseSample> BytesOccupied(std::vector<Occupied> occupied) {
  std::vector<uint64_t> bounds;
  for (const Occupied& some : occupied) bounds.insert(bounds.end(), {some.begin, some.end});
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::vector<std::vector<Interval>> intervals(bounds.size());  // from each bound to the next
  const auto index_of = [&bounds](uint64_t bound) {
    return std::lower_bound(bounds.begin(), bounds.end(), bound) - bounds.begin();
  };
  for (const Occupied& some : occupied) {
    for (auto i = index_of(some.begin); i < index_of(some.end); ++i) {
      intervals[i].push_back(some.interval);
    }
  }
  Changes bytes;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::vector<Interval>& list = intervals[i];
    std::sort(list.begin(), list.end(),
              [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; });
    if (list.empty()) continue;
    Interval joined = list[0];
    for (const Interval& interval : list) {
      if (interval.begin_ns > joined.end_ns) {
        bytes.Add(joined, static_cast<int64_t>(bounds[i + 1] - bounds[i]));
        joined = interval;
      }
      joined.end_ns = std::max(joined.end_ns, interval.end_ns);
    }
    bytes.Add(joined, static_cast<int64_t>(bounds[i + 1] - bounds[i]));
  }
  return std::move(bytes).Sum();
}

class DeviceUseFinder {
 public:
  DeviceUseFinder(const planner::Plan& plan, const DevicePlan& device)
      : plan_(plan),
        device_(device),
        phase_of_actor_(device.actors.size(), kNone),
        instances_(device.phases.size()) {
    for (uint32_t p = 0; p < device.phases.size(); ++p) {
      const planner::PhasePlan& phase = device.phases[p];
      const uint64_t end = uint64_t{phase.first_actor} + phase.num_actors;
      for (uint64_t a = phase.first_actor; a < std::min<uint64_t>(end, device.actors.size()); ++a) {
        phase_of_actor_[a] = p;
      }
    }
  }

  // Of an event of this device.
  void Add(const TraceEvent& event) {
    if (event.phase >= device_.phases.size()) return;
    if (event.actor != kNone) {
      if (IsCommunication(plan_, event)) communications_.Add({event.begin_ns, event.end_ns}, 1);
      return;
    }
    const auto firings =
        static_cast<int64_t>(planner::FiringsPerStep(plan_, device_.phases[event.phase]));
    if (event.step < 0 || event.step > INT64_MAX / planner::kMaxMicrobatches - 1) return;
    instances_[event.phase][event.step * firings + event.microbatch] = {event.begin_ns,
                                                                        event.end_ns};
  }

  DeviceUse Find() && {
    std::map<uint32_t, std::vector<const ChannelPlan*>> by_register;
    // By what decides how tokens pass, so that an edge is looked at once.
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>,
             const ChannelPlan*>
        edges;
    for (const ChannelPlan& channel : device_.channels) {
      if (channel.reg == kNone || !IsBetweenPhases(channel)) continue;
      by_register[channel.reg].push_back(&channel);
      edges.try_emplace({phase_of_actor_[channel.producer], phase_of_actor_[channel.consumer],
                         channel.capacity, channel.produce, channel.consume, channel.initial},
                        &channel);
    }
    DeviceUse use;
    for (const auto& [key, channel] : edges) {
      EdgeUse edge = UseOf(*channel);
      if (!edge.credits_in_use.empty()) use.edges.push_back(std::move(edge));
    }
    std::vector<Occupied> occupied;
    for (const auto& [reg, channels] : by_register) AddRegister(reg, channels, &occupied);
    use.channel_bytes = BytesOccupied(std::move(occupied));
    use.communications = std::move(communications_).Sum();
    return use;
  }

 private:
  bool IsBetweenPhases(const ChannelPlan& channel) const {
    if (channel.producer >= phase_of_actor_.size() || channel.consumer >= phase_of_actor_.size() ||
        channel.reg >= device_.registers.size() || channel.produce == 0 || channel.consume == 0) {
      return false;
    }
    const uint32_t producer = phase_of_actor_[channel.producer];
    const uint32_t consumer = phase_of_actor_[channel.consumer];
    return producer != kNone && consumer != kNone && producer != consumer;
  }

  std::optional<Interval> InstanceOf(uint32_t phase, int64_t instance) const {
    const auto it = instances_[phase].find(instance);
    if (it == instances_[phase].end()) return std::nullopt;
    return it->second;
  }

  EdgeUse UseOf(const ChannelPlan& channel) const {
    EdgeUse edge = {phase_of_actor_[channel.producer],
                    phase_of_actor_[channel.consumer],
                    channel.capacity,
                    {},
                    {}};
    Changes in_use;
    Changes waiting;
    for (const auto& [instance, produced] : instances_[edge.producer_phase]) {
      const int64_t first = instance * channel.produce + channel.initial;
      const int64_t end = first + channel.produce;
      for (int64_t token = first; token < end;) {
        const int64_t consumer = token / channel.consume;
        const int64_t next = std::min<int64_t>(end, (consumer + 1) * channel.consume);
        if (const auto consumed = InstanceOf(edge.consumer_phase, consumer)) {
          in_use.Add({produced.begin_ns, consumed->end_ns}, next - token);
          waiting.Add({produced.end_ns, consumed->begin_ns}, next - token);
        }
        token = next;
      }
    }
    edge.credits_in_use = std::move(in_use).Sum();
    edge.tokens_waiting = std::move(waiting).Sum();
    return edge;
  }

  // The slots of a register that `channels` read, each from when it is filled first.
  void AddRegister(uint32_t reg, const std::vector<const ChannelPlan*>& channels,
                   std::vector<Occupied>* occupied) const {
    const planner::RegisterPlan& plan = device_.registers[reg];
    if (plan.register_class != planner::RegisterClass::kChannel || plan.slots == 0) return;
    std::map<int64_t, Interval> slots;  // by instance at the register's rate
    for (const ChannelPlan* channel : channels) {
      const uint32_t producer = phase_of_actor_[channel->producer];
      const auto firings =
          static_cast<int64_t>(planner::FiringsPerStep(plan_, device_.phases[producer]));
      for (const auto& [instance, produced] : instances_[producer]) {
        const int64_t last = (instance + 1) * channel->produce + channel->initial - 1;
        const auto consumed =
            InstanceOf(phase_of_actor_[channel->consumer], last / channel->consume);
        if (!consumed.has_value()) continue;
        const int64_t slot = plan.per_microbatch ? instance : instance / firings;
        const auto [it, is_new] =
            slots.try_emplace(slot, Interval{produced.begin_ns, consumed->end_ns});
        if (is_new) continue;
        it->second.begin_ns = std::min(it->second.begin_ns, produced.begin_ns);
        it->second.end_ns = std::max(it->second.end_ns, consumed->end_ns);
      }
    }
    for (const auto& [slot, interval] : slots) {
      const uint64_t begin =
          plan.offset + static_cast<uint64_t>(slot % plan.slots) * plan.slot_bytes;
      occupied->push_back({begin, begin + plan.slot_bytes, interval});
    }
  }

  const planner::Plan& plan_;
  const DevicePlan& device_;
  std::vector<uint32_t> phase_of_actor_;
  Instances instances_;
  Changes communications_;
};

}  // namespace

std::vector<DeviceUse> UseOverTime(const planner::Plan& plan, absl::Span<const TraceEvent> events) {
  std::vector<DeviceUseFinder> finders;
  finders.reserve(plan.devices.size());
  for (const DevicePlan& device : plan.devices) finders.emplace_back(plan, device);
  for (const TraceEvent& event : events) {
    if (event.device < finders.size()) finders[event.device].Add(event);
  }
  std::vector<DeviceUse> uses;
  for (DeviceUseFinder& finder : finders) uses.push_back(std::move(finder).Find());
  return uses;
}

}  // namespace penstock::actors
