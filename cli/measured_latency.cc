#include "cli/measured_latency.h"

#include <algorithm>

#include "actors/trace/communication_times.h"
#include "planner/cost/communication_cost.h"

namespace penstock::cli {
namespace {

using planner::ActorKind;
using planner::LinkRates;

// Null unless the event is of a communication that crosses processes.
const planner::ActorPlan* CrossingActor(const planner::Plan& plan, const actors::TraceEvent& event,
                                        const std::vector<uint32_t>& process_of_device) {
  if (!actors::IsCommunication(plan, event)) return nullptr;
  const planner::ActorPlan& actor = plan.devices[event.device].actors[event.actor];
  if (actor.kind != ActorKind::kCollective) {
    const planner::TransferPlan& transfer = plan.transfers[actor.target];
    const bool crosses =
        process_of_device[transfer.source] != process_of_device[transfer.destination];
    return crosses ? &actor : nullptr;
  }
  const std::vector<uint32_t>& devices = plan.collectives[actor.target].devices;
  const bool crosses = std::any_of(devices.begin(), devices.end(), [&](uint32_t device) {
    return process_of_device[device] != process_of_device[devices.front()];
  });
  return crosses ? &actor : nullptr;
}

double SecondsOf(const planner::Plan& plan, const planner::ActorPlan& actor,
                 const LinkRates& rates) {
  return actor.kind == ActorKind::kCollective
             ? planner::CollectiveSeconds(plan.collectives[actor.target], rates)
             : planner::TransferSeconds(plan.transfers[actor.target].num_bytes, rates);
}

}  // namespace

std::optional<double> MeasuredLatency(const planner::Plan& plan,
                                      absl::Span<const actors::TraceEvent> events,
                                      const std::vector<uint32_t>& process_of_device,
                                      double bytes_per_s) {
  const std::vector<actors::TransferTime> times = actors::TransferTimes(plan, events);
  std::optional<double> lowest;
  for (size_t i = 0; i < events.size(); ++i) {
    const planner::ActorPlan* actor = CrossingActor(plan, events[i], process_of_device);
    // Where a sender is done before its receiver has begun, nothing is known of the time between.
    if (actor == nullptr || times[i].moving_ns == 0) continue;
    const double bytes_s = SecondsOf(plan, *actor, {0, bytes_per_s});
    const double num_latencies = SecondsOf(plan, *actor, {1, bytes_per_s}) - bytes_s;
    if (!(num_latencies > 0)) continue;
    const double latency_s =
        std::max(1e-9 * static_cast<double>(times[i].moving_ns) - bytes_s, 0.0) / num_latencies;
    lowest = std::min(lowest.value_or(latency_s), latency_s);
  }
  return lowest;
}

}  // namespace penstock::cli
