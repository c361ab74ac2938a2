#include "planner/plan/fire_plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/status_macros.h"
#include "planner/plan/firing_internal.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::planner {
namespace internal {

absl::StatusOr<FiringResult> Firing::Run() {
  Number();
  RETURN_IF_ERROR(OrderStages());
  for (uint32_t d = 0; d < plan_.devices.size(); ++d) AddDevice(d);
  for (uint32_t p = 0; p < phases_.size(); ++p) List(p);
  while (true) {
    while (!worklist_.empty()) {
      const uint32_t p = worklist_.back();
      worklist_.pop_back();
      phases_[p].is_listed = false;
      Poll(p);
    }
    bool has_chosen = false;
    for (uint32_t s = 0; s < stages_.size(); ++s) has_chosen |= Choose(s);
    if (!has_chosen && !TakeEvent()) break;
  }
  for (uint32_t p = 0; p < phases_.size(); ++p) {
    if (!IsDone(p)) return Deadlock(p);
  }
  FiringResult result;
  for (size_t d = 0; d < plan_.devices.size(); ++d) {
    // The sum counts a phase's workspace and channels at their most, though they may share bytes.
    result.peak_live_bytes.push_back(std::min(peak_bytes_[d], plan_.devices[d].arena_bytes));
  }
  result.step_ends_s = step_ends_s_;
  for (StageOrder& stage : stages_) {
    result.stage_orders.push_back(std::move(stage.order));
    result.is_stage_planned.push_back(stage.is_planned);
  }
  for (const DevicePlan& device : plan_.devices) {
    for (const PhasePlan& phase : device.phases) {
      result.firings += uint64_t{phase.num_actors} * FiringsPerStep(plan_, phase);
    }
  }
  return result;
}

uint32_t Firing::Expected(uint32_t d, Lane lane) {
  LaneState& state = lanes_[d][static_cast<size_t>(lane)];
  if (lane == Lane::kPerStep) {
    const std::vector<uint32_t>& order = per_step_order_[d];
    return state.position < num_steps_ * order.size() ? order[state.position % order.size()]
                                                      : kNone;
  }
  const StageOrder& stage = stages_[plan_.devices[d].stage];
  const size_t size = stage.order.size() * (stage.is_planned ? num_steps_ : 1);
  for (; state.position < size; ++state.position) {
    const uint32_t p = PhaseOfType(d, stage.order[state.position % stage.order.size()]);
    if (p != kNone) return p;
  }
  return kNone;
}

void Firing::Poll(uint32_t p) {
  PhaseState& state = phases_[p];
  if (!state.is_running) {
    if (state.num_closed > 0 || state.num_started == state.num_to_start) return;
    if (LaneState* lane = LaneOf(state); lane != nullptr) {
      if (lane->running != kNone || Expected(state.device, PlanOf(state).lane) != p) return;
      lane->running = p;
    }
    Start(p);
  }
  Advance(p);
}

std::pair<uint32_t, uint32_t> Firing::ProducedBy(const PhaseState& state) const {
  if (state.first_item == state.end_item) return {0, 0};
  return {state.first_item == 0 ? 0 : items_[state.first_item - 1].produced_end,
          items_[state.end_item - 1].produced_end};
}

std::pair<uint32_t, uint32_t> Firing::ConsumedBy(const PhaseState& state) const {
  if (state.first_item == state.end_item) return {0, 0};
  return {state.first_item == 0 ? 0 : items_[state.first_item - 1].consumed_end,
          items_[state.end_item - 1].consumed_end};
}

void Firing::Start(uint32_t p) {
  PhaseState& state = phases_[p];
  state.is_running = true;
  ++state.num_started;
  state.next_item = state.first_item;
  if (times_ != nullptr) {
    for (uint32_t i = state.first_item; i < state.end_item; ++i) {
      timed_items_[i].num_waiting = timed_items_[i].num_inputs + 1;
      Release(p, i);
    }
  }
  const auto [produced, produced_end] = ProducedBy(state);
  for (uint32_t i = produced; i < produced_end; ++i) {
    TokenCounter& counter = counters_[produced_[i]];
    const uint32_t before = LevelOf(counter);
    counter.credits -= counter.produce;
    if (counter.credits < counter.produce) ++state.num_closed;
    Raise(state.device, counter, before);
  }
  const auto [consumed, consumed_end] = ConsumedBy(state);
  for (uint32_t i = consumed; i < consumed_end; ++i) {
    TokenCounter& counter = counters_[consumed_[i]];
    counter.tokens -= counter.consume;
    if (counter.tokens < counter.consume) ++state.num_closed;
  }
  live_bytes_[state.device] += workspace_bytes_[state.device][state.phase];
  peak_bytes_[state.device] = std::max(peak_bytes_[state.device], live_bytes_[state.device]);
}

void Firing::Advance(uint32_t p) {
  if (is_ordering_) {
    AdvanceInTurn(p);
  } else if (times_ == nullptr) {
    AdvanceInOrder(p);
  } else {
    FireReady(p);
  }
  PhaseState& state = phases_[p];
  if (state.next_item < state.end_item || state.num_pending > 0) return;
  if (is_ordering_ || order_ != nullptr) CompleteLaunched(state);
  state.is_running = false;
  const uint32_t step = (state.num_started - 1) / FiringsPerStep(plan_, PlanOf(state));
  if (--num_remaining_[step] == 0) step_ends_s_[step] = now_s_;
  live_bytes_[state.device] -= workspace_bytes_[state.device][state.phase];
  LaneState* lane = LaneOf(state);
  if (lane == nullptr) {
    List(p);
  } else {
    lane->running = kNone;
    // In the per-step lane the instances of one phase and step follow each other.
    if (PlanOf(state).lane == Lane::kCompute ||
        state.num_started % FiringsPerStep(plan_, PlanOf(state)) == 0) {
      ++lane->position;
    }
    List(Expected(state.device, PlanOf(state).lane));
  }
}

void Firing::AdvanceInOrder(uint32_t p) {
  PhaseState& state = phases_[p];
  for (; state.next_item < state.end_item; ++state.next_item) {
    if (FirstWait(state) != kNone) return;
    const Item& item = items_[state.next_item];
    if (item.member == kNone) {
      Complete(state.next_item);
      continue;
    }
    if (order_ != nullptr && IsLaunched(item)) {
      if (!MayLaunch(state)) return;
      CountLaunch(state);
    }
    StartCommunication(p, state.next_item);
  }
}

void Firing::FireReady(uint32_t p) {
  PhaseState& state = phases_[p];
  ReadyItems& ready = ready_[p];
  while (true) {
    const bool can_compute = state.computing == kNone && !ready.computation.empty();
    const bool can_communicate = !ready.communication.empty();
    if (!can_compute && !can_communicate) return;
    const bool computes =
        can_compute && (!can_communicate || ready.computation[0] < ready.communication[0]);
    ReadyItems::Heap& heap = computes ? ready.computation : ready.communication;
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint32_t item = heap.back();
    heap.pop_back();
    FireTimed(p, item);
  }
}

void Firing::FireTimed(uint32_t p, uint32_t item) {
  PhaseState& state = phases_[p];
  const TimedItem& timed = timed_items_[item];
  ++state.next_item;
  if (items_[item].member != kNone) {
    if (timed.next_of_group != kNone) Release(p, timed.next_of_group);
    StartCommunication(p, item);
  } else if (timed.copy != kNone) {
    FireCopy(p, item);
  } else if (timed.seconds > 0 || timed.after_s > now_s_) {
    // It has its place on the stream, and waits there for copies.
    ++state.num_pending;
    state.computing = item;
    const FiredActor fired = {state.device, items_[item].actor, state.num_started - 1};
    const double begin_s = std::max(now_s_, timed.after_s);
    AddEvent(times_->Compute(fired, begin_s, timed.seconds), TimedEvent::Kind::kComputation, p);
  } else {
    CompleteTimed(p, item);
  }
}

// All that its phase's stream has been given before is over. What waits for it follows on the
// stream, in the planned order, and waits there; communication is started when it has ended.
void Firing::FireCopy(uint32_t p, uint32_t item) {
  PhaseState& state = phases_[p];
  const TimedItem& timed = timed_items_[item];
  ++state.num_pending;
  const FiredActor fired = {state.device, items_[item].actor, state.num_started - 1};
  const double end_s = times_->Copy(fired, copies_[timed.copy].is_to_host,
                                    std::max(now_s_, timed.after_s), timed.seconds);
  AddEvent(end_s, TimedEvent::Kind::kCopy, timed.copy);
  for (const uint32_t waiting : WaitsOf(item)) {
    if (items_[waiting].member != kNone) continue;
    double& after_s = timed_items_[waiting].after_s;
    after_s = std::max(after_s, end_s);
    Release(p, waiting);
  }
}

void Firing::CompleteCopy(const StreamCopy& copy) {
  const uint32_t item = copy.item;
  --phases_[copy.phase].num_pending;
  for (const uint32_t waiting : WaitsOf(item)) {
    if (items_[waiting].member != kNone) Release(copy.phase, waiting);
  }
  Complete(item);
  List(copy.phase);
}

void Firing::Release(uint32_t p, uint32_t item) {
  if (--timed_items_[item].num_waiting > 0) return;
  ReadyItems::Heap& heap =
      items_[item].member == kNone ? ready_[p].computation : ready_[p].communication;
  heap.push_back(item);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

void Firing::CompleteTimed(uint32_t p, uint32_t item) {
  for (const uint32_t waiting : WaitsOf(item)) Release(p, waiting);
  Complete(item);
}

void Firing::StartCommunication(uint32_t p, uint32_t item) {
  ++phases_[p].num_pending;
  const uint32_t rendezvous = members_[items_[item].member].rendezvous;
  if (++num_arrived_[rendezvous] < rendezvous_.Of(rendezvous).size()) return;
  num_arrived_[rendezvous] = 0;
  if (times_ == nullptr) {
    CompleteRendezvous(rendezvous, p);
  } else {
    const uint32_t number = members_[rendezvous_.begin(rendezvous)].num_completed;
    AddEvent(times_->Communicate(rendezvous, number, now_s_), TimedEvent::Kind::kRendezvous,
             rendezvous);
  }
}

void Firing::CompleteRendezvous(uint32_t rendezvous, uint32_t advancing) {
  for (uint32_t i = rendezvous_.begin(rendezvous); i < rendezvous_.ends[rendezvous]; ++i) {
    Member& member = members_[i];
    ++member.num_completed;
    --phases_[member.phase].num_pending;
    if (times_ != nullptr) {
      CompleteTimed(member.phase, member.item);
    } else if (order_ == nullptr || !IsLaunched(items_[member.item])) {
      Complete(member.item);
    }
    if (member.phase != advancing) List(member.phase);
  }
}

void Firing::Prefetch() const {
  // Each stage fetches what the next one dereferences.
  constexpr size_t kPhaseAhead = 12;
  constexpr size_t kItemAhead = 8;
  constexpr size_t kListsAhead = 4;
  const auto computing = [this](size_t ahead) {
    const TimedEvent* event = events_.Ahead(ahead);
    return event == nullptr || event->kind != TimedEvent::Kind::kComputation
               ? kNone
               : phases_[event->index].computing;
  };
  if (const TimedEvent* event = events_.Ahead(kPhaseAhead); event != nullptr) {
    if (event->kind == TimedEvent::Kind::kRendezvous) {
      __builtin_prefetch(&members_[rendezvous_.begin(event->index)]);
    } else if (event->kind == TimedEvent::Kind::kComputation) {
      __builtin_prefetch(&phases_[event->index]);
      __builtin_prefetch(&ready_[event->index]);
    }
  }
  if (const uint32_t item = computing(kItemAhead); item != kNone) {
    __builtin_prefetch(items_.data() + item);
    __builtin_prefetch(timed_items_.data() + item + 1);
  }
  if (const uint32_t item = computing(kListsAhead); item != kNone && item > 0) {
    __builtin_prefetch(waits_.data() + items_[item - 1].waits_end);
    __builtin_prefetch(produced_.data() + items_[item - 1].produced_end);
    __builtin_prefetch(consumed_.data() + items_[item - 1].consumed_end);
  }
}

bool Firing::TakeEvent() {
  if (events_.empty()) return false;
  Prefetch();
  const auto [time, event] = events_.Take();
  now_s_ = time;
  if (event.kind == TimedEvent::Kind::kRendezvous) {
    CompleteRendezvous(event.index, kNone);
  } else if (event.kind == TimedEvent::Kind::kCopy) {
    CompleteCopy(copies_[event.index]);
  } else {
    PhaseState& state = phases_[event.index];
    const uint32_t item = std::exchange(state.computing, kNone);
    --state.num_pending;
    CompleteTimed(event.index, item);
    List(event.index);
  }
  return true;
}

uint32_t Firing::FirstWait(const PhaseState& state) const {
  for (const uint32_t member : WaitsOf(state.next_item)) {
    if (members_[member].num_completed < state.num_started) return member;
  }
  return kNone;
}

void Firing::Complete(uint32_t index) {
  const Item& item = items_[index];
  const uint32_t produced = index == 0 ? 0 : items_[index - 1].produced_end;
  const uint32_t consumed = index == 0 ? 0 : items_[index - 1].consumed_end;
  for (uint32_t i = produced; i < item.produced_end; ++i) {
    TokenCounter& counter = counters_[produced_[i]];
    const bool was_closed = counter.tokens < counter.consume;
    counter.tokens += counter.produce;
    if (was_closed && counter.tokens >= counter.consume) Open(counter.consumer_phase);
  }
  for (uint32_t i = consumed; i < item.consumed_end; ++i) {
    TokenCounter& counter = counters_[consumed_[i]];
    const bool was_closed = counter.credits < counter.produce;
    const uint32_t before = LevelOf(counter);
    counter.credits += counter.consume;
    if (was_closed && counter.credits >= counter.produce) Open(counter.producer_phase);
    Lower(phases_[counter.producer_phase].device, counter, before);
  }
}

bool Firing::Choose(uint32_t s) {
  StageOrder& stage = stages_[s];
  if (stage.is_planned) return false;
  const std::vector<uint32_t>& devices = plan_.stages[s].devices;
  for (const uint32_t d : devices) {
    const LaneState& lane = lanes_[d][static_cast<size_t>(Lane::kCompute)];
    if (lane.running != kNone || Expected(d, Lane::kCompute) != kNone) return false;
  }
  for (int kind = kNumPolicyKinds - 1; kind >= 0; --kind) {
    for (uint32_t type = kind; type < stage.has_type.size(); type += kNumPolicyKinds) {
      if (!IsWanted(stage, type, devices)) continue;
      const bool is_ready = std::all_of(devices.begin(), devices.end(), [&](uint32_t d) {
        const uint32_t p = PhaseOfType(d, type);
        return p == kNone || phases_[p].num_closed == 0;
      });
      if (!is_ready) continue;
      stage.order.push_back(type);
      for (const uint32_t d : devices) List(PhaseOfType(d, type));
      return true;
    }
  }
  return false;
}

bool Firing::IsWanted(const StageOrder& stage, uint32_t type,
                      const std::vector<uint32_t>& devices) const {
  const auto num_types = std::count(stage.has_type.begin(), stage.has_type.end(), true);
  if (!stage.has_type[type]) return false;
  const size_t step = stage.order.size() / (num_types * plan_.num_microbatches);
  const size_t limit = std::min<size_t>(step + 1, num_steps_) * plan_.num_microbatches;
  return std::any_of(devices.begin(), devices.end(), [&](uint32_t d) {
    const uint32_t p = PhaseOfType(d, type);
    return p != kNone && phases_[p].num_started < limit;
  });
}

void Firing::Raise(uint32_t d, const TokenCounter& counter, uint32_t before) {
  const uint32_t level = LevelOf(counter);
  if (counter.reg == kNone || level == before) return;
  LiveSlots& slots = live_slots_[counter.reg];
  if (level > slots.level) {
    live_bytes_[d] += (level - slots.level) * slots.slot_bytes;
    slots.level = level;
    slots.num_at_level = 0;
  }
  if (level == slots.level) ++slots.num_at_level;
}

void Firing::Lower(uint32_t d, const TokenCounter& counter, uint32_t before) {
  if (counter.reg == kNone || LevelOf(counter) == before) return;
  LiveSlots& slots = live_slots_[counter.reg];
  if (before != slots.level || --slots.num_at_level > 0) return;
  // Paid for by the firing that raised them all to the level that has now been left.
  uint32_t level = 0;
  for (const uint32_t other : slots.counters) level = std::max(level, LevelOf(counters_[other]));
  slots.num_at_level = static_cast<uint32_t>(
      std::count_if(slots.counters.begin(), slots.counters.end(),
                    [&](uint32_t other) { return LevelOf(counters_[other]) == level; }));
  live_bytes_[d] -= (slots.level - level) * slots.slot_bytes;
  slots.level = level;
}

}  // namespace internal

absl::StatusOr<FiringResult> FirePlan(const Plan& plan, const PolicyRegistry& policies,
                                      const RendezvousTable& rendezvous_table,
                                      const PhaseWorkspaceBytes& workspace_bytes,
                                      FiringTimes* times) {
  return internal::Firing(plan, policies, rendezvous_table, workspace_bytes, times).Run();
}

}  // namespace penstock::planner
