#include "actors/trace/computation_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "actors/trace/communication_times.h"
#include "actors/trace/interval_set_internal.h"

namespace penstock::actors {

using planner::kNone;

namespace {

constexpr size_t kLeastUndisturbed = 3;  // fewer say less than all do

// Kernels overlap it.
bool IsMemoryCopy(const planner::Plan& plan, const TraceEvent& event) {
  return plan.devices[event.device].actors[event.actor].kind == planner::ActorKind::kCopy;
}

}  // namespace

bool IsComputation(const planner::Plan& plan, const TraceEvent& event) {
  if (event.actor == kNone || event.device >= plan.devices.size()) return false;
  const planner::DevicePlan& device = plan.devices[event.device];
  return event.phase < device.phases.size() && event.actor < device.actors.size() &&
         !planner::IsCommunication(device.actors[event.actor].kind);
}

std::vector<int64_t> SerialBegins(const planner::Plan& plan, absl::Span<const TraceEvent> events) {
  std::vector<int64_t> begins_ns;
  begins_ns.reserve(events.size());
  std::vector<std::array<int64_t, 3>> free_ns(plan.devices.size(),
                                              {INT64_MIN, INT64_MIN, INT64_MIN});
  for (const TraceEvent& event : events) {
    int64_t& begin_ns = begins_ns.emplace_back(event.begin_ns);
    if (!IsComputation(plan, event) || IsMemoryCopy(plan, event)) continue;
    const auto lane = static_cast<size_t>(plan.devices[event.device].phases[event.phase].lane);
    int64_t& lane_free_ns = free_ns[event.device][lane];
    const int64_t end_ns = std::max(event.begin_ns, event.end_ns);
    begin_ns = std::clamp(lane_free_ns, event.begin_ns, end_ns);
    lane_free_ns = end_ns;
  }
  return begins_ns;
}

std::vector<TraceEvent> SerializeComputations(const planner::Plan& plan,
                                              absl::Span<const TraceEvent> events) {
  std::vector<TraceEvent> serial(events.begin(), events.end());
  const std::vector<int64_t> begins_ns = SerialBegins(plan, events);
  for (size_t i = 0; i < serial.size(); ++i) {
    if (!IsComputation(plan, serial[i])) continue;
    serial[i].end_ns = std::max(serial[i].begin_ns, serial[i].end_ns);
    serial[i].begin_ns = begins_ns[i];
  }
  return serial;
}

std::vector<bool> BesideCommunication(const planner::Plan& plan,
                                      absl::Span<const TraceEvent> events,
                                      absl::Span<const uint32_t> process_of_device) {
  std::map<uint32_t, std::vector<Interval>> moving;  // by process
  const std::vector<TransferTime> times = TransferTimes(plan, events);
  for (size_t i = 0; i < events.size(); ++i) {
    if (!IsCommunication(plan, events[i])) continue;
    moving[process_of_device[events[i].device]].emplace_back(times[i].begin_ns, times[i].end_ns);
  }
  std::map<uint32_t, IntervalSet> sets;
  for (auto& [process, intervals] : moving) sets.try_emplace(process, std::move(intervals));
  std::vector<bool> is_beside(events.size(), false);
  const std::vector<int64_t> begins_ns = SerialBegins(plan, events);
  for (size_t i = 0; i < events.size(); ++i) {
    if (!IsComputation(plan, events[i])) continue;
    const auto set = sets.find(process_of_device[events[i].device]);
    is_beside[i] = set != sets.end() && set->second.Covered(begins_ns[i], events[i].end_ns) > 0;
  }
  return is_beside;
}

std::vector<std::vector<double>> MedianComputeSeconds(const planner::Plan& plan,
                                                      absl::Span<const TraceEvent> events,
                                                      const std::vector<bool>& is_disturbed) {
  struct Times {
    std::vector<int64_t> undisturbed_ns;
    std::vector<int64_t> all_ns;
  };
  std::vector<std::vector<Times>> times(plan.devices.size());
  for (size_t d = 0; d < plan.devices.size(); ++d) times[d].resize(plan.devices[d].actors.size());
  const std::vector<int64_t> begins_ns = SerialBegins(plan, events);
  for (size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    if (!IsComputation(plan, event)) continue;
    const int64_t duration_ns = std::max(event.begin_ns, event.end_ns) - begins_ns[i];
    Times& of_actor = times[event.device][event.actor];
    of_actor.all_ns.push_back(duration_ns);
    if (is_disturbed.empty() || !is_disturbed[i]) of_actor.undisturbed_ns.push_back(duration_ns);
  }
  std::vector<std::vector<double>> medians(plan.devices.size());
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    for (Times& of_actor : times[d]) {
      const bool has_enough = of_actor.undisturbed_ns.size() >= kLeastUndisturbed;
      std::vector<int64_t>& list = has_enough ? of_actor.undisturbed_ns : of_actor.all_ns;
      const auto middle = list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2);
      if (!list.empty()) std::nth_element(list.begin(), middle, list.end());
      medians[d].push_back(list.empty() ? 0 : 1e-9 * static_cast<double>(*middle));
    }
  }
  return medians;
}

}  // namespace penstock::actors
