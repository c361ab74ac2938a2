#include "actors/trace/communication_times.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_map.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;

// One exchange: whether it is a collective, its index in the plan, its step and micro-batch.
using Exchange = std::tuple<bool, uint32_t, int64_t, uint32_t>;

// The actor of an event of communication; null for other events.
const planner::ActorPlan* CommunicationOf(const planner::Plan& plan, const TraceEvent& event) {
  if (event.actor == planner::kNone || event.device >= plan.devices.size()) return nullptr;
  const planner::DevicePlan& device = plan.devices[event.device];
  if (event.actor >= device.actors.size()) return nullptr;
  const planner::ActorPlan& actor = device.actors[event.actor];
  return actor.kind >= ActorKind::kCollective ? &actor : nullptr;
}

Exchange ExchangeOf(const planner::ActorPlan& actor, const TraceEvent& event) {
  return {actor.kind == ActorKind::kCollective, actor.target, event.step, event.microbatch};
}

}  // namespace

bool IsCommunication(const planner::Plan& plan, const TraceEvent& event) {
  return CommunicationOf(plan, event) != nullptr;
}

std::vector<TransferTime> TransferTimes(const planner::Plan& plan,
                                        absl::Span<const TraceEvent> events) {
  absl::flat_hash_map<Exchange, TransferTime> exchanges;
  for (const TraceEvent& event : events) {
    const planner::ActorPlan* actor = CommunicationOf(plan, event);
    if (actor == nullptr) continue;
    const auto [it, is_new] = exchanges.try_emplace(ExchangeOf(*actor, event),
                                                    TransferTime{event.begin_ns, event.end_ns});
    if (is_new) continue;
    it->second.begin_ns = std::max(it->second.begin_ns, event.begin_ns);
    it->second.end_ns = std::min(it->second.end_ns, event.end_ns);
  }
  std::vector<TransferTime> times;
  times.reserve(events.size());
  for (const TraceEvent& event : events) {
    TransferTime time = {event.begin_ns, std::max(event.begin_ns, event.end_ns)};
    if (const planner::ActorPlan* actor = CommunicationOf(plan, event); actor != nullptr) {
      const TransferTime& exchange = exchanges.at(ExchangeOf(*actor, event));
      time.begin_ns = std::clamp(exchange.begin_ns, time.begin_ns, time.end_ns);
      time.end_ns = std::clamp(exchange.end_ns, time.begin_ns, time.end_ns);
    }
    times.push_back(time);
  }
  return times;
}

}  // namespace penstock::actors
