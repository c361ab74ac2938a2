#include "actors/trace/communication_times.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "base/collective.h"
#include "base/dtype.h"

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
  return planner::IsCommunication(actor.kind) ? &actor : nullptr;
}

Exchange ExchangeOf(const planner::ActorPlan& actor, const TraceEvent& event) {
  return {actor.kind == ActorKind::kCollective, actor.target, event.step, event.microbatch};
}

// What moves data in the same way: transfers from one device to another, or collectives of a kind
// over a group.
using Route = std::tuple<bool, int, std::vector<uint32_t>>;

// A transfer or a collective of the plan.
struct Target {
  Route route;
  uint64_t num_bytes = 0;
  int64_t shortest_ns = std::numeric_limits<int64_t>::max();
  // The shortest time in which so many bytes or more were moved on the same route.
  int64_t needed_ns = std::numeric_limits<int64_t>::max();
};

std::vector<Target> TransfersOf(const planner::Plan& plan) {
  std::vector<Target> targets;
  targets.reserve(plan.transfers.size());
  for (const planner::TransferPlan& transfer : plan.transfers) {
    targets.push_back({{false, 0, {transfer.source, transfer.destination}}, transfer.num_bytes});
  }
  return targets;
}

std::vector<Target> CollectivesOf(const planner::Plan& plan) {
  std::vector<Target> targets;
  targets.reserve(plan.collectives.size());
  for (const CollectiveSpec& spec : plan.collectives) {
    const int64_t count = std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0});
    targets.push_back({{true, static_cast<int>(spec.kind), spec.devices},
                       static_cast<uint64_t>(count) * ByteSize(spec.dtype)});
  }
  return targets;
}

void FindNeeded(std::vector<Target>* targets) {
  std::map<Route, std::map<uint64_t, int64_t>> shortest;
  for (const Target& target : *targets) {
    const auto [it, is_new] =
        shortest[target.route].try_emplace(target.num_bytes, target.shortest_ns);
    if (!is_new) it->second = std::min(it->second, target.shortest_ns);
  }
  for (auto& [route, times] : shortest) {
    int64_t least_ns = std::numeric_limits<int64_t>::max();
    for (auto it = times.rbegin(); it != times.rend(); ++it) {
      least_ns = it->second = std::min(it->second, least_ns);
    }
  }
  for (Target& target : *targets) {
    target.needed_ns = shortest.at(target.route).at(target.num_bytes);
  }
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
  std::vector<Target> transfers = TransfersOf(plan);
  std::vector<Target> collectives = CollectivesOf(plan);
  const auto target_of = [&](const Exchange& exchange) -> Target* {
    std::vector<Target>& targets = std::get<0>(exchange) ? collectives : transfers;
    const uint32_t index = std::get<1>(exchange);
    return index < targets.size() ? &targets[index] : nullptr;
  };
  for (const auto& [exchange, time] : exchanges) {
    const int64_t duration_ns = time.end_ns - time.begin_ns;
    // Where bytes are buffered, a sender may be done before its receiver has begun. That says
    // nothing of how long they took.
    Target* const target = target_of(exchange);
    if (duration_ns <= 0 || target == nullptr) continue;
    target->shortest_ns = std::min(target->shortest_ns, duration_ns);
  }
  FindNeeded(&transfers);
  FindNeeded(&collectives);
  std::vector<TransferTime> times;
  times.reserve(events.size());
  for (const TraceEvent& event : events) {
    TransferTime time = {event.begin_ns, std::max(event.begin_ns, event.end_ns)};
    const planner::ActorPlan* actor = CommunicationOf(plan, event);
    int64_t needed_ns = std::numeric_limits<int64_t>::max();
    if (actor != nullptr) {
      const Exchange exchange = ExchangeOf(*actor, event);
      const TransferTime& common = exchanges.at(exchange);
      time.begin_ns = std::clamp(common.begin_ns, time.begin_ns, time.end_ns);
      time.end_ns = std::clamp(common.end_ns, time.begin_ns, time.end_ns);
      if (const Target* target = target_of(exchange)) needed_ns = target->needed_ns;
    }
    time.moving_ns = std::min(time.end_ns - time.begin_ns, needed_ns);
    times.push_back(time);
  }
  return times;
}

}  // namespace penstock::actors
