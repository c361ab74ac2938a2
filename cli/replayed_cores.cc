#include "cli/replayed_cores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "actors/trace/computation_times.h"

namespace penstock::cli {
namespace {

// Where a computation begins or ends.
struct Edge {
  int64_t time_ns = 0;
  size_t event = 0;
  bool is_begin = false;
};

// Shortens each computation of a group to its share of the core's time.
void ShareTime(std::vector<Edge> edges, std::vector<actors::TraceEvent>* events) {
  // Of those at one time, ends come first: what touches does not overlap.
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.is_begin < b.is_begin;
  });
  struct Running {
    size_t event = 0;
    double share_ns = 0;
  };
  std::vector<Running> running;  // a few: of each device, those of its lanes
  int64_t last_ns = 0;
  for (const Edge& edge : edges) {
    if (!running.empty()) {
      const double share_ns =
          static_cast<double>(edge.time_ns - last_ns) / static_cast<double>(running.size());
      for (Running& each : running) each.share_ns += share_ns;
    }
    last_ns = edge.time_ns;
    if (edge.is_begin) {
      running.push_back({edge.event, 0});
      continue;
    }
    const auto ended = std::find_if(running.begin(), running.end(), [&edge](const Running& each) {
      return each.event == edge.event;
    });
    actors::TraceEvent& event = (*events)[edge.event];
    event.end_ns = event.begin_ns + std::llround(ended->share_ns);
    running.erase(ended);
  }
}

}  // namespace

std::vector<uint32_t> CoreOfDevice(const actors::SharedCores& cores) {
  std::vector<uint32_t> core_of_device;
  const auto num_groups = static_cast<uint32_t>(cores.num_at_once.size());
  for (uint32_t device = 0; device < cores.groups.size(); ++device) {
    const uint32_t group = cores.groups[device];
    core_of_device.push_back(cores.num_at_once[group] == 1 ? group : num_groups + device);
  }
  return core_of_device;
}

std::vector<actors::TraceEvent> WithoutCoreSharing(const planner::Plan& plan,
                                                   absl::Span<const actors::TraceEvent> events,
                                                   const actors::SharedCores& cores) {
  std::vector<actors::TraceEvent> result = actors::SerializeComputations(plan, events);
  std::vector<std::vector<Edge>> edges_of_group(cores.num_at_once.size());
  for (size_t i = 0; i < result.size(); ++i) {
    const actors::TraceEvent& event = result[i];
    // What took no time by the clock has no share.
    if (!actors::IsComputation(plan, event) || event.begin_ns == event.end_ns) continue;
    const uint32_t group = cores.groups[event.device];
    if (cores.num_at_once[group] != 1) continue;
    edges_of_group[group].push_back({event.begin_ns, i, true});
    edges_of_group[group].push_back({event.end_ns, i, false});
  }
  for (std::vector<Edge>& edges : edges_of_group) ShareTime(std::move(edges), &result);
  return result;
}

}  // namespace penstock::cli
