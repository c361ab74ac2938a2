#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "planner/plan/firing_internal.h"

namespace penstock::planner {
namespace internal {

Firing::Wait Firing::WaitOf(uint32_t p) {
  const PhaseState& state = phases_[p];
  if (IsDone(p)) return {"has run to its end", kNone};
  if (state.is_running) return WaitForRendezvous(state);
  const LaneState* lane = LaneOf(state);
  if (lane == nullptr) return WaitForGate(p);
  const std::string_view name = Name(PlanOf(state).lane);
  if (lane->running != kNone) {
    return {StrCat("waits for the ", name, " lane, which is held by ", Describe(lane->running)),
            lane->running};
  }
  const uint32_t expected = Expected(state.device, PlanOf(state).lane);
  if (expected == kNone) return WaitForChoice(p);
  if (expected != p) {
    return {StrCat("waits for its turn in the ", name, " lane after ", Describe(expected)),
            expected};
  }
  return WaitForGate(p);
}

Firing::Wait Firing::WaitForGate(uint32_t p) const {
  const PhaseState& state = phases_[p];
  const DevicePlan& device = plan_.devices[state.device];
  const auto [consumed, consumed_end] = ConsumedBy(state);
  for (uint32_t i = consumed; i < consumed_end; ++i) {
    const TokenCounter& counter = counters_[consumed_[i]];
    if (counter.tokens >= counter.consume) continue;
    return {StrCat("waits for tokens of channel ", counter.channel, " (needs ", counter.consume,
                   ", has ", counter.tokens, ") from ",
                   DescribeActor(plan_, state.device, device.channels[counter.channel].producer)),
            counter.producer_phase};
  }
  const auto [produced, produced_end] = ProducedBy(state);
  for (uint32_t i = produced; i < produced_end; ++i) {
    const TokenCounter& counter = counters_[produced_[i]];
    if (counter.credits >= counter.produce) continue;
    return {StrCat("waits for credits of channel ", counter.channel, " (needs ", counter.produce,
                   ", has ", counter.credits, ") from ",
                   DescribeActor(plan_, state.device, device.channels[counter.channel].consumer)),
            counter.consumer_phase};
  }
  return {"waits for nothing", kNone};
}

Firing::Wait Firing::WaitForRendezvous(const PhaseState& state) const {
  uint32_t waited = kNone;
  uint32_t waiting_actor = 0;
  if (state.next_item < state.end_item) {
    waited = FirstWait(state);
    waiting_actor = items_[state.next_item].actor;
  } else {
    for (uint32_t i = state.first_item; i < state.end_item && waited == kNone; ++i) {
      const uint32_t member = items_[i].member;
      if (member == kNone || members_[member].num_completed == state.num_started) continue;
      waited = member;
      waiting_actor = items_[i].actor;
    }
  }
  if (waited == kNone && order_ != nullptr) {
    const uint32_t other = (*order_)[state.device][positions_[state.device].run].phase;
    return {StrCat("waits in ", DescribeActor(plan_, state.device, waiting_actor),
                   " for its turn to launch after ", Describe(phase_base_[state.device] + other)),
            phase_base_[state.device] + other};
  }
  const uint32_t rendezvous = members_[waited].rendezvous;
  for (uint32_t i = rendezvous_.begin(rendezvous); i < rendezvous_.ends[rendezvous]; ++i) {
    const Member& member = members_[i];
    const PhaseState& other = phases_[member.phase];
    const bool has_started = other.is_running && member.item < other.next_item &&
                             member.num_completed + 1 == other.num_started;
    if (has_started) continue;
    const bool is_collective = rendezvous < plan_.collectives.size();
    const uint64_t number = is_collective ? rendezvous : rendezvous - plan_.collectives.size();
    return {StrCat("waits in ", DescribeActor(plan_, state.device, waiting_actor), " for ",
                   is_collective ? "collective " : "transfer ", number, " with ",
                   DescribeActor(plan_, rendezvous_.actors[i].device, rendezvous_.actors[i].actor)),
            member.phase};
  }
  return {"waits for nothing", kNone};
}

Firing::Wait Firing::WaitForChoice(uint32_t p) {
  const uint32_t s = plan_.devices[phases_[p].device].stage;
  const std::vector<uint32_t>& devices = plan_.stages[s].devices;
  for (const uint32_t d : devices) {
    const uint32_t running = lanes_[d][static_cast<size_t>(Lane::kCompute)].running;
    const uint32_t behind = running != kNone ? running : Expected(d, Lane::kCompute);
    if (behind == kNone) continue;
    return {StrCat("waits for the choice of stage ", s, " after ", Describe(behind)), behind};
  }
  if (phases_[p].num_closed > 0) return WaitForGate(p);
  for (uint32_t type = 0; type < stages_[s].has_type.size(); ++type) {
    if (!IsWanted(stages_[s], type, devices)) continue;
    for (const uint32_t d : devices) {
      const uint32_t other = PhaseOfType(d, type);
      if (other == kNone || phases_[other].num_closed == 0) continue;
      return {StrCat("waits for the choice of stage ", s, ", for which it takes ", Describe(other)),
              other};
    }
  }
  return {"waits for nothing", kNone};
}

absl::Status Firing::Deadlock(uint32_t start) {
  constexpr size_t kMaxShown = 32;
  if (times_ != nullptr) {  // only if the policy decides otherwise than when it was verified
    return absl::FailedPreconditionError(
        StrCat("deadlock in virtual time: ", Describe(start), " does not come to its end"));
  }
  std::vector<uint32_t> path;
  std::vector<std::string> texts;
  std::vector<uint32_t> place_in_path(phases_.size(), kNone);
  uint32_t p = start;
  while (p != kNone && place_in_path[p] == kNone) {
    place_in_path[p] = static_cast<uint32_t>(path.size());
    path.push_back(p);
    Wait wait = WaitOf(p);
    texts.push_back(std::move(wait.text));
    p = wait.next;
  }
  const size_t first = p == kNone ? 0 : place_in_path[p];
  std::string text = StrCat("deadlock: ", Describe(path[first]), " ", texts[first]);
  for (size_t i = first + 1; i < path.size(); ++i) {
    if (i - first == kMaxShown) {
      StrAppend(&text, ", and so on through ", path.size() - i, " more phases");
      break;
    }
    StrAppend(&text, ", which ", texts[i]);
  }
  StrAppend(&text, "; phases are in the order of policy '", plan_.policy, "'");
  return absl::FailedPreconditionError(text);
}

}  // namespace internal

}  // namespace penstock::planner
