#include "planner/plan/fire_plan.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/show_plan.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::planner {
namespace {

constexpr uint32_t kUntimedSteps = 2;
constexpr uint32_t kTimedSteps = 4;

// A channel between phases. Phases are numbered over all devices.
struct Place {
  uint32_t tokens = 0;
  uint32_t credits = 0;
  uint32_t produce = 1;
  uint32_t consume = 1;
  uint32_t producer_phase = 0;
  uint32_t consumer_phase = 0;
  uint32_t reg = kNone;  // number over all devices, of a channel register
  uint32_t capacity = 1;
  uint32_t tokens_per_slot = 1;
  uint32_t channel = 0;  // of the device
};

// An actor at which something happens besides computation; with times, any actor.
struct Item {
  uint32_t actor = 0;
  uint32_t member = kNone;  // index into RendezvousTable::actors, of communication
  // Members to wait for, with times items: waits_[previous item's end .. this end).
  uint32_t waits_end = 0;
  uint32_t puts_end = 0;   // places to put tokens into when it completes, likewise
  uint32_t gives_end = 0;  // places to give credits back to when it completes, likewise
};

struct PhaseState {
  uint32_t device = 0;
  uint32_t phase = 0;  // of the device
  uint32_t first_item = 0;
  uint32_t end_item = 0;
  uint32_t num_closed = 0;  // gates
  uint32_t num_started = 0;
  uint32_t num_to_start = 0;
  uint32_t next_item = 0;    // the first that has not fired
  uint32_t num_pending = 0;  // items that have fired and not completed
  bool is_running = false;
  bool is_listed = false;      // in the worklist
  uint32_t computing = kNone;  // with times: the item that computes
};

// With times: what an item takes, and how often it has fired.
struct TimedItem {
  double seconds = 0;        // of computation
  uint32_t follows = kNone;  // of a collective: the one before it of its group in the phase
  uint32_t num_fired = 0;
  uint32_t num_completed = 0;
};

// With times: the end of a phase's computation, or of a rendezvous. In order of time; those of one
// time in the order in which they were found.
struct TimedEvent {
  double time = 0;
  uint64_t number = 0;
  bool is_meeting = false;
  uint32_t index = 0;  // of the rendezvous or phase
  friend bool operator>(const TimedEvent& a, const TimedEvent& b) {
    return std::pair(a.time, a.number) > std::pair(b.time, b.number);
  }
};

// A member of a rendezvous.
struct Member {
  uint32_t phase = 0;
  uint32_t item = 0;
  uint32_t rendezvous = 0;
  uint32_t num_completed = 0;
};

// One phase at a time, in an order.
struct LaneState {
  uint32_t position = 0;     // in the lane's order, over all steps
  uint32_t running = kNone;  // phase
};

// The order of a stage's compute lane: of one step where it is planned, of all steps otherwise,
// decided while firing.
struct StageOrder {
  bool is_planned = false;
  std::vector<uint32_t> order;  // of phase types
  std::vector<bool> has_type;
};

// Slots of a channel register in use: the most over its channels.
struct LiveSlots {
  std::vector<uint32_t> places;
  uint32_t level = 0;
  uint32_t num_at_level = 0;  // channels whose level it is
  uint64_t slot_bytes = 0;
};

class Firing {
 public:
  Firing(const Plan& plan, const PolicyRegistry& policies, const RendezvousTable& rendezvous_table,
         const PhaseWorkspaceBytes& workspace_bytes, FiringTimes* times)
      : plan_(plan),
        policies_(policies),
        rendezvous_(rendezvous_table),
        workspace_bytes_(workspace_bytes),
        times_(times),
        num_steps_(times == nullptr ? kUntimedSteps : kTimedSteps) {}

  absl::StatusOr<FiringResult> Run() {
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
    for (const DevicePlan& device : plan_.devices) {
      for (const PhasePlan& phase : device.phases) {
        result.firings += uint64_t{phase.num_actors} * FiringsPerStep(plan_, phase);
      }
    }
    return result;
  }

 private:
  // ---- Making the places and items
  // ---------------------------------------------------------------

  void Number() {
    uint32_t num_phases = 0;
    uint32_t num_registers = 0;
    uint64_t instances_per_step = 0;
    for (const DevicePlan& device : plan_.devices) {
      for (const PhasePlan& phase : device.phases) {
        instances_per_step += FiringsPerStep(plan_, phase);
      }
      phase_base_.push_back(num_phases);
      register_base_.push_back(num_registers);
      num_phases += static_cast<uint32_t>(device.phases.size());
      num_registers += static_cast<uint32_t>(device.registers.size());
    }
    num_remaining_.assign(num_steps_, instances_per_step);
    step_ends_s_.resize(num_steps_);
    phases_.resize(num_phases);
    live_slots_.resize(num_registers);
    members_.resize(rendezvous_.actors.size());
    num_arrived_.resize(rendezvous_.size());
    lanes_.resize(plan_.devices.size());
    phase_of_type_.resize(plan_.devices.size());
    once_order_.resize(plan_.devices.size());
    live_bytes_.resize(plan_.devices.size());
    peak_bytes_.resize(plan_.devices.size());
    members_of_device_.resize(plan_.devices.size());
    for (uint32_t m = 0; m < rendezvous_.size(); ++m) {
      for (uint32_t i = rendezvous_.begin(m); i < rendezvous_.ends[m]; ++i) {
        members_[i].rendezvous = m;
        members_of_device_[rendezvous_.actors[i].device].push_back(i);
      }
    }
  }

  absl::Status OrderStages() {
    const auto num_stages = static_cast<uint32_t>(plan_.stages.size());
    for (uint32_t s = 0; s < num_stages; ++s) {
      StageOrder stage;
      for (const PhaseKinds& kinds : StageContextOf(plan_, s).chunks) {
        stage.has_type.insert(stage.has_type.end(), kinds.begin(), kinds.end());
      }
      ASSIGN_OR_RETURN(const StageSchedule schedule, ScheduleOf(plan_, s, policies_));
      stage.is_planned = !schedule.order.empty();
      for (const PhaseChoice& choice : schedule.order) {
        stage.order.push_back(PhaseType(choice.kind, static_cast<uint32_t>(choice.chunk)));
      }
      stages_.push_back(std::move(stage));
    }
    return absl::OkStatus();
  }

  void AddDevice(uint32_t d) {
    const DevicePlan& device = plan_.devices[d];
    for (uint32_t p = 0; p < device.phases.size(); ++p) {
      const PhasePlan& phase = device.phases[p];
      PhaseState& state = phases_[phase_base_[d] + p];
      state.device = d;
      state.phase = p;
      state.num_to_start = num_steps_ * FiringsPerStep(plan_, phase);
      if (phase.lane == Lane::kCompute) {
        const uint32_t type = PhaseType(phase.kind, phase.chunk);
        if (type >= phase_of_type_[d].size()) phase_of_type_[d].resize(type + 1, kNone);
        phase_of_type_[d][type] = phase_base_[d] + p;
      } else if (phase.lane == Lane::kPerStep) {
        once_order_[d].push_back(phase_base_[d] + p);
      }
    }
    AddItems(d);
    // State, and channel registers that no channel counts, are always there.
    for (uint32_t r = 0; r < device.registers.size(); ++r) {
      const RegisterPlan& reg = device.registers[r];
      const bool is_counted = !live_slots_[register_base_[d] + r].places.empty();
      if (reg.register_class == RegisterClass::kWorkspace || is_counted) continue;
      if (IsOnHost(device, reg)) continue;
      live_bytes_[d] += reg.slots * reg.slot_bytes;
    }
    peak_bytes_[d] = live_bytes_[d];
  }

  // What an actor waits for and where it puts and gives, gathered by actor and cut into items.
  void AddItems(uint32_t d) {
    const DevicePlan& device = plan_.devices[d];
    const auto num_actors = static_cast<uint32_t>(device.actors.size());
    const auto first_item = static_cast<uint32_t>(items_.size());
    std::vector<uint32_t> member_of(num_actors, kNone);
    for (const uint32_t member : members_of_device_[d]) {
      member_of[rendezvous_.actors[member].actor] = member;
    }

    enum : size_t { kWaits, kPuts, kGives };
    std::array<std::vector<uint32_t>, 3> next;  // of each actor: where its entries begin
    for (std::vector<uint32_t>& begins : next) begins.assign(num_actors + 1, 0);
    std::vector<std::pair<uint32_t, uint32_t>> channel_phases(device.channels.size());
    for (size_t c = 0; c < device.channels.size(); ++c) {
      const ChannelPlan& channel = device.channels[c];
      channel_phases[c] = {PhaseOfActor(device, channel.producer),
                           PhaseOfActor(device, channel.consumer)};
      if (channel_phases[c].first != channel_phases[c].second) {
        ++next[kPuts][channel.producer + 1];
        ++next[kGives][channel.consumer + 1];
      } else if (times_ != nullptr || member_of[channel.producer] != kNone) {
        ++next[kWaits][channel.consumer + 1];
      }
    }
    std::array<std::vector<uint32_t>*, 3> lists = {&waits_, &puts_, &gives_};
    for (size_t i = 0; i < lists.size(); ++i) {
      next[i][0] = static_cast<uint32_t>(lists[i]->size());
      for (uint32_t a = 0; a < num_actors; ++a) next[i][a + 1] += next[i][a];
      lists[i]->resize(next[i][num_actors]);
    }
    for (uint32_t c = 0; c < device.channels.size(); ++c) {
      const ChannelPlan& channel = device.channels[c];
      const auto [from, to] = channel_phases[c];
      if (from != to) {
        const auto place = static_cast<uint32_t>(places_.size());
        puts_[next[kPuts][channel.producer]++] = place;
        gives_[next[kGives][channel.consumer]++] = place;
        AddPlace(d, c, from, to);
      } else if (times_ != nullptr) {
        waits_[next[kWaits][channel.consumer]++] = first_item + channel.producer;
      } else if (member_of[channel.producer] != kNone) {
        waits_[next[kWaits][channel.consumer]++] = member_of[channel.producer];
      }
    }
    // next[i][a] is now the end of actor a's entries.
    std::array<uint32_t, 3> ends = {};
    if (!items_.empty()) {
      ends = {items_.back().waits_end, items_.back().puts_end, items_.back().gives_end};
    }
    std::vector<uint32_t> previous_of_group;
    if (times_ != nullptr) previous_of_group = PreviousOfGroups(plan_, d);
    for (uint32_t p = 0; p < device.phases.size(); ++p) {
      const PhasePlan& phase = device.phases[p];
      PhaseState& state = phases_[phase_base_[d] + p];
      state.first_item = static_cast<uint32_t>(items_.size());
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        const std::array<uint32_t, 3> now = {next[kWaits][a], next[kPuts][a], next[kGives][a]};
        if (times_ == nullptr && member_of[a] == kNone && now == ends) continue;
        if (member_of[a] != kNone) {
          Member& member = members_[member_of[a]];
          member.phase = phase_base_[d] + p;
          member.item = static_cast<uint32_t>(items_.size());
        }
        items_.push_back({a, member_of[a], now[kWaits], now[kPuts], now[kGives]});
        ends = now;
      }
      state.end_item = static_cast<uint32_t>(items_.size());
      if (times_ != nullptr) AddTimes(state, previous_of_group);
    }
  }

  // `previous`: PreviousOfGroups.
  void AddTimes(const PhaseState& state, const std::vector<uint32_t>& previous) {
    const PhasePlan& phase = PlanOf(state);
    for (uint32_t i = state.first_item; i < state.end_item; ++i) {
      TimedItem timed;
      if (items_[i].member == kNone) {
        timed.seconds = times_->ComputeSeconds(state.device, items_[i].actor);
      } else if (const uint32_t before = previous[items_[i].actor]; before != kNone) {
        timed.follows = state.first_item + (before - phase.first_actor);  // every actor is an item
      }
      timed_items_.push_back(timed);
    }
  }

  void AddPlace(uint32_t d, uint32_t c, uint32_t from, uint32_t to) {
    const DevicePlan& device = plan_.devices[d];
    const ChannelPlan& channel = device.channels[c];
    Place place;
    place.tokens = channel.initial;
    place.credits = channel.capacity - channel.initial;
    place.produce = channel.produce;
    place.consume = channel.consume;
    place.capacity = channel.capacity;
    place.channel = c;
    place.producer_phase = phase_base_[d] + from;
    place.consumer_phase = phase_base_[d] + to;
    if (channel.reg != kNone &&
        device.registers[channel.reg].register_class == RegisterClass::kChannel) {
      const RegisterPlan& reg = device.registers[channel.reg];
      place.reg = register_base_[d] + channel.reg;
      place.tokens_per_slot = static_cast<uint32_t>(TokensPerSlot(
          plan_, reg, uint64_t{channel.produce} * FiringsPerStep(plan_, device.phases[from])));
      LiveSlots& slots = live_slots_[place.reg];
      slots.slot_bytes = IsOnHost(device, reg) ? 0 : reg.slot_bytes;
      slots.places.push_back(static_cast<uint32_t>(places_.size()));
      Raise(d, place, 0);
    }
    if (place.credits < place.produce) ++phases_[place.producer_phase].num_closed;
    if (place.tokens < place.consume) ++phases_[place.consumer_phase].num_closed;
    places_.push_back(place);
  }

  // ---- Firing
  // --------------------------------------------------------------------------------------

  const PhasePlan& PlanOf(const PhaseState& state) const {
    return plan_.devices[state.device].phases[state.phase];
  }
  bool IsDone(uint32_t p) const {
    return phases_[p].num_started == phases_[p].num_to_start && !phases_[p].is_running;
  }

  void List(uint32_t p) {
    if (p == kNone || phases_[p].is_listed) return;
    phases_[p].is_listed = true;
    worklist_.push_back(p);
  }

  LaneState* LaneOf(const PhaseState& state) {
    const Lane lane = PlanOf(state).lane;
    return lane == Lane::kFloating ? nullptr : &lanes_[state.device][static_cast<size_t>(lane)];
  }

  // The phase whose turn it is in a lane of the device; kNone: not yet chosen, or all steps are
  // done.
  uint32_t Expected(uint32_t d, Lane lane) {
    LaneState& state = lanes_[d][static_cast<size_t>(lane)];
    if (lane == Lane::kPerStep) {
      const std::vector<uint32_t>& order = once_order_[d];
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

  // kNone: the device has none.
  uint32_t PhaseOfType(uint32_t d, uint32_t type) const {
    return type < phase_of_type_[d].size() ? phase_of_type_[d][type] : kNone;
  }

  void Poll(uint32_t p) {
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

  // The places where a phase puts tokens, and where it takes them: those of all its items.
  std::pair<uint32_t, uint32_t> Puts(const PhaseState& state) const {
    if (state.first_item == state.end_item) return {0, 0};
    return {state.first_item == 0 ? 0 : items_[state.first_item - 1].puts_end,
            items_[state.end_item - 1].puts_end};
  }
  std::pair<uint32_t, uint32_t> Gives(const PhaseState& state) const {
    if (state.first_item == state.end_item) return {0, 0};
    return {state.first_item == 0 ? 0 : items_[state.first_item - 1].gives_end,
            items_[state.end_item - 1].gives_end};
  }

  void Start(uint32_t p) {
    PhaseState& state = phases_[p];
    state.is_running = true;
    ++state.num_started;
    state.next_item = state.first_item;
    const auto [puts, puts_end] = Puts(state);
    for (uint32_t i = puts; i < puts_end; ++i) {
      Place& place = places_[puts_[i]];
      const uint32_t before = LevelOf(place);
      place.credits -= place.produce;
      if (place.credits < place.produce) ++state.num_closed;
      Raise(state.device, place, before);
    }
    const auto [gives, gives_end] = Gives(state);
    for (uint32_t i = gives; i < gives_end; ++i) {
      Place& place = places_[gives_[i]];
      place.tokens -= place.consume;
      if (place.tokens < place.consume) ++state.num_closed;
    }
    live_bytes_[state.device] += workspace_bytes_[state.device][state.phase];
    peak_bytes_[state.device] = std::max(peak_bytes_[state.device], live_bytes_[state.device]);
  }

  void Advance(uint32_t p) {
    if (times_ == nullptr) {
      AdvanceInOrder(p);
    } else {
      FireReady(p);
    }
    PhaseState& state = phases_[p];
    if (state.next_item < state.end_item || state.num_pending > 0) return;
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

  // Without times: runs the phase until it waits for communication, or to its end.
  void AdvanceInOrder(uint32_t p) {
    PhaseState& state = phases_[p];
    for (; state.next_item < state.end_item; ++state.next_item) {
      if (FirstWait(state) != kNone) return;
      if (items_[state.next_item].member == kNone) {
        Complete(state.next_item);
      } else {
        Meet(p, state.next_item);
      }
    }
  }

  // With times: starts what is ready, of computation one item at a time, the first.
  void FireReady(uint32_t p) {
    PhaseState& state = phases_[p];
    for (uint32_t i = state.next_item; i < state.end_item; ++i) {
      TimedItem& timed = timed_items_[i];
      const bool computes = items_[i].member == kNone;
      if (timed.num_fired < state.num_started && !(computes && state.computing != kNone) &&
          IsReady(state, i)) {
        ++timed.num_fired;
        if (!computes) {
          Meet(p, i);
        } else if (timed.seconds > 0) {
          ++state.num_pending;
          state.computing = i;
          AddEvent(times_->Compute(state.device, now_s_, timed.seconds), false, p);
        } else {
          ++timed.num_completed;
          Complete(i);
        }
      }
      if (i == state.next_item && timed.num_fired == state.num_started) ++state.next_item;
    }
  }

  bool IsReady(const PhaseState& state, uint32_t item) const {
    const uint32_t follows = timed_items_[item].follows;
    if (follows != kNone && timed_items_[follows].num_fired < state.num_started) return false;
    for (uint32_t i = item == 0 ? 0 : items_[item - 1].waits_end; i < items_[item].waits_end; ++i) {
      if (timed_items_[waits_[i]].num_completed < state.num_started) return false;
    }
    return true;
  }

  // A communication of the phase starts.
  void Meet(uint32_t p, uint32_t item) {
    ++phases_[p].num_pending;
    const uint32_t rendezvous = members_[items_[item].member].rendezvous;
    if (++num_arrived_[rendezvous] < rendezvous_.Of(rendezvous).size()) return;
    num_arrived_[rendezvous] = 0;
    if (times_ == nullptr) {
      CompleteRendezvous(rendezvous, p);
    } else {
      AddEvent(times_->Communicate(rendezvous, now_s_), true, rendezvous);
    }
  }

  // All who meet have what they wait for. The phase `advancing` goes on by itself.
  void CompleteRendezvous(uint32_t rendezvous, uint32_t advancing) {
    for (uint32_t i = rendezvous_.begin(rendezvous); i < rendezvous_.ends[rendezvous]; ++i) {
      Member& member = members_[i];
      ++member.num_completed;
      if (times_ != nullptr) ++timed_items_[member.item].num_completed;
      --phases_[member.phase].num_pending;
      Complete(member.item);
      if (member.phase != advancing) List(member.phase);
    }
  }

  void AddEvent(double time, bool is_meeting, uint32_t index) {
    events_.push({time, num_events_++, is_meeting, index});
  }

  // Moves time to the next event, which happens; false: there is none.
  bool TakeEvent() {
    if (events_.empty()) return false;
    const TimedEvent event = events_.top();
    events_.pop();
    now_s_ = event.time;
    if (event.is_meeting) {
      CompleteRendezvous(event.index, kNone);
    } else {
      PhaseState& state = phases_[event.index];
      const uint32_t item = std::exchange(state.computing, kNone);
      --state.num_pending;
      ++timed_items_[item].num_completed;
      Complete(item);
      List(event.index);
    }
    return true;
  }

  // The first member that the phase's next item waits for; kNone: it can start.
  uint32_t FirstWait(const PhaseState& state) const {
    const uint32_t begin = state.next_item == 0 ? 0 : items_[state.next_item - 1].waits_end;
    for (uint32_t i = begin; i < items_[state.next_item].waits_end; ++i) {
      if (members_[waits_[i]].num_completed < state.num_started) return waits_[i];
    }
    return kNone;
  }

  void Complete(uint32_t index) {
    const Item& item = items_[index];
    const uint32_t puts = index == 0 ? 0 : items_[index - 1].puts_end;
    const uint32_t gives = index == 0 ? 0 : items_[index - 1].gives_end;
    for (uint32_t i = puts; i < item.puts_end; ++i) {
      Place& place = places_[puts_[i]];
      const bool was_closed = place.tokens < place.consume;
      place.tokens += place.produce;
      if (was_closed && place.tokens >= place.consume) Open(place.consumer_phase);
    }
    for (uint32_t i = gives; i < item.gives_end; ++i) {
      Place& place = places_[gives_[i]];
      const bool was_closed = place.credits < place.produce;
      const uint32_t before = LevelOf(place);
      place.credits += place.consume;
      if (was_closed && place.credits >= place.produce) Open(place.producer_phase);
      Lower(phases_[place.producer_phase].device, place, before);
    }
  }

  void Open(uint32_t p) {
    if (--phases_[p].num_closed == 0) List(p);
  }

  // A policy without a planned order: the stage takes a phase that is ready on all its devices,
  // once they all have finished the one before; backwards and weight gradients before forwards.
  bool Choose(uint32_t s) {
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

  // Whether the stage has phases of the kind left to choose in its present step. REQUIRES: no
  // device of the stage is behind with what was chosen.
  bool IsWanted(const StageOrder& stage, uint32_t type,
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

  // ---- Live bytes
  // ----------------------------------------------------------------------------------

  // Slots of its register in use as far as one channel is concerned.
  static uint32_t LevelOf(const Place& place) {
    if (place.reg == kNone) return 0;
    return (place.capacity - place.credits + place.tokens_per_slot - 1) / place.tokens_per_slot;
  }

  void Raise(uint32_t d, const Place& place, uint32_t before) {
    const uint32_t level = LevelOf(place);
    if (place.reg == kNone || level == before) return;
    LiveSlots& slots = live_slots_[place.reg];
    if (level > slots.level) {
      live_bytes_[d] += (level - slots.level) * slots.slot_bytes;
      slots.level = level;
      slots.num_at_level = 0;
    }
    if (level == slots.level) ++slots.num_at_level;
  }

  void Lower(uint32_t d, const Place& place, uint32_t before) {
    if (place.reg == kNone || LevelOf(place) == before) return;
    LiveSlots& slots = live_slots_[place.reg];
    if (before != slots.level || --slots.num_at_level > 0) return;
    // Paid for by the firing that raised them all to the level that has now been left.
    uint32_t level = 0;
    for (const uint32_t other : slots.places) level = std::max(level, LevelOf(places_[other]));
    slots.num_at_level = static_cast<uint32_t>(
        std::count_if(slots.places.begin(), slots.places.end(),
                      [&](uint32_t other) { return LevelOf(places_[other]) == level; }));
    live_bytes_[d] -= (slots.level - level) * slots.slot_bytes;
    slots.level = level;
  }

  // ---- Naming a deadlock
  // ---------------------------------------------------------------------------

  struct Wait {
    std::string text;  // "waits for ..." naming phase `next`
    uint32_t next = kNone;
  };

  std::string Describe(uint32_t p) const {
    return DescribePhase(plan_, phases_[p].device, phases_[p].phase);
  }

  // What a phase that is not done waits for, after nothing can fire any more.
  Wait WaitOf(uint32_t p) {
    const PhaseState& state = phases_[p];
    if (IsDone(p)) return {"has run to its end", kNone};
    if (state.is_running) return WaitForMeeting(state);
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

  Wait WaitForGate(uint32_t p) const {
    const PhaseState& state = phases_[p];
    const DevicePlan& device = plan_.devices[state.device];
    const auto [gives, gives_end] = Gives(state);
    for (uint32_t i = gives; i < gives_end; ++i) {
      const Place& place = places_[gives_[i]];
      if (place.tokens >= place.consume) continue;
      return {StrCat("waits for tokens of channel ", place.channel, " (needs ", place.consume,
                     ", has ", place.tokens, ") from ",
                     DescribeActor(plan_, state.device, device.channels[place.channel].producer)),
              place.producer_phase};
    }
    const auto [puts, puts_end] = Puts(state);
    for (uint32_t i = puts; i < puts_end; ++i) {
      const Place& place = places_[puts_[i]];
      if (place.credits >= place.produce) continue;
      return {StrCat("waits for credits of channel ", place.channel, " (needs ", place.produce,
                     ", has ", place.credits, ") from ",
                     DescribeActor(plan_, state.device, device.channels[place.channel].consumer)),
              place.consumer_phase};
    }
    return {"waits for nothing", kNone};
  }

  // A running phase stands at an actor that needs communication which has not completed, or has
  // come to its end and waits for the communication that it started.
  Wait WaitForMeeting(const PhaseState& state) const {
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
    const uint32_t rendezvous = members_[waited].rendezvous;
    for (uint32_t i = rendezvous_.begin(rendezvous); i < rendezvous_.ends[rendezvous]; ++i) {
      const Member& member = members_[i];
      const PhaseState& other = phases_[member.phase];
      const bool has_started = other.is_running && member.item < other.next_item &&
                               member.num_completed + 1 == other.num_started;
      if (has_started) continue;
      const bool is_collective = rendezvous < plan_.collectives.size();
      const uint64_t number = is_collective ? rendezvous : rendezvous - plan_.collectives.size();
      return {
          StrCat("waits in ", DescribeActor(plan_, state.device, waiting_actor), " for ",
                 is_collective ? "collective " : "transfer ", number, " with ",
                 DescribeActor(plan_, rendezvous_.actors[i].device, rendezvous_.actors[i].actor)),
          member.phase};
    }
    return {"waits for nothing", kNone};
  }

  // The stage has chosen no phase: because a device is still at the last one, or none is ready.
  Wait WaitForChoice(uint32_t p) {
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
        return {
            StrCat("waits for the choice of stage ", s, ", for which it takes ", Describe(other)),
            other};
      }
    }
    return {"waits for nothing", kNone};
  }

  // Every phase that cannot go on waits for another one of them, so following the waits from any of
  // them leads into a cycle.
  absl::Status Deadlock(uint32_t start) {
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

  const Plan& plan_;
  const PolicyRegistry& policies_;
  const RendezvousTable& rendezvous_;
  const PhaseWorkspaceBytes& workspace_bytes_;
  FiringTimes* const times_;
  const uint32_t num_steps_;

  // The network. Phases, places and registers are numbered over all devices.
  std::vector<uint32_t> phase_base_;     // of each device: its first phase
  std::vector<uint32_t> register_base_;  // likewise
  std::vector<Place> places_;
  std::vector<Item> items_;
  std::vector<TimedItem> timed_items_;  // of each item, with times
  std::vector<uint32_t> waits_;
  std::vector<uint32_t> puts_;
  std::vector<uint32_t> gives_;
  std::vector<std::vector<uint32_t>> members_of_device_;
  std::vector<std::vector<uint32_t>> phase_of_type_;  // in the compute lane, of each device
  std::vector<std::vector<uint32_t>> once_order_;     // of each device, one step

  // Its state.
  std::vector<PhaseState> phases_;
  std::vector<Member> members_;
  std::vector<uint32_t> num_arrived_;            // at each rendezvous
  std::vector<std::array<LaneState, 2>> lanes_;  // of each device: compute and once
  std::vector<StageOrder> stages_;
  std::vector<uint32_t> worklist_;
  std::vector<LiveSlots> live_slots_;  // of each register
  std::vector<uint64_t> live_bytes_;   // of each device
  std::vector<uint64_t> peak_bytes_;
  std::vector<uint64_t> num_remaining_;  // phase instances of each step
  double now_s_ = 0;
  std::priority_queue<TimedEvent, std::vector<TimedEvent>, std::greater<>> events_;
  uint64_t num_events_ = 0;  // that there have been
  std::vector<double> step_ends_s_;
};

}  // namespace

absl::StatusOr<FiringResult> FirePlan(const Plan& plan, const PolicyRegistry& policies,
                                      const RendezvousTable& rendezvous_table,
                                      const PhaseWorkspaceBytes& workspace_bytes,
                                      FiringTimes* times) {
  return Firing(plan, policies, rendezvous_table, workspace_bytes, times).Run();
}

}  // namespace penstock::planner
