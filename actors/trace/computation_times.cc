#include "actors/trace/computation_times.h"

#include <algorithm>
#include <array>

namespace penstock::actors {

using planner::kNone;

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
    if (!IsComputation(plan, event)) continue;
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

std::vector<std::vector<double>> MedianComputeSeconds(const planner::Plan& plan,
                                                      absl::Span<const TraceEvent> events) {
  std::vector<std::vector<std::vector<int64_t>>> times_ns(plan.devices.size());
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    times_ns[d].resize(plan.devices[d].actors.size());
  }
  const std::vector<int64_t> begins_ns = SerialBegins(plan, events);
  for (size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    if (!IsComputation(plan, event)) continue;
    times_ns[event.device][event.actor].push_back(std::max(event.begin_ns, event.end_ns) -
                                                  begins_ns[i]);
  }
  std::vector<std::vector<double>> medians(plan.devices.size());
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    for (std::vector<int64_t>& list : times_ns[d]) {
      const auto middle = list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2);
      if (!list.empty()) std::nth_element(list.begin(), middle, list.end());
      medians[d].push_back(list.empty() ? 0 : 1e-9 * static_cast<double>(*middle));
    }
  }
  return medians;
}

}  // namespace penstock::actors
