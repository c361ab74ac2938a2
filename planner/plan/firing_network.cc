#include <algorithm>
#include <array>
#include <utility>

#include "base/status_macros.h"
#include "planner/plan/firing_internal.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::planner {
namespace internal {

void Firing::Number() {
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
  if (times_ != nullptr) ready_.resize(num_phases);
  live_slots_.resize(num_registers);
  members_.resize(rendezvous_.actors.size());
  num_arrived_.resize(rendezvous_.size());
  lanes_.resize(plan_.devices.size());
  phase_of_type_.resize(plan_.devices.size());
  per_step_order_.resize(plan_.devices.size());
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

absl::Status Firing::OrderStages() {
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

void Firing::AddDevice(uint32_t d) {
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
      per_step_order_[d].push_back(phase_base_[d] + p);
    }
  }
  AddItems(d);
  // State, and channel registers that no channel counts, are always there.
  for (uint32_t r = 0; r < device.registers.size(); ++r) {
    const RegisterPlan& reg = device.registers[r];
    const bool is_counted = !live_slots_[register_base_[d] + r].counters.empty();
    if (reg.register_class == RegisterClass::kWorkspace || is_counted) continue;
    if (IsOnHost(device, reg)) continue;
    live_bytes_[d] += reg.slots * reg.slot_bytes;
  }
  peak_bytes_[d] = live_bytes_[d];
}

void Firing::AddItems(uint32_t d) {
  const DevicePlan& device = plan_.devices[d];
  const auto num_actors = static_cast<uint32_t>(device.actors.size());
  const auto first_item = static_cast<uint32_t>(items_.size());
  std::vector<uint32_t> member_of(num_actors, kNone);
  for (const uint32_t member : members_of_device_[d]) {
    member_of[rendezvous_.actors[member].actor] = member;
  }

  enum : size_t { kWaits, kProduced, kConsumed };
  std::array<std::vector<uint32_t>, 3> next;  // of each actor: where its entries begin
  for (std::vector<uint32_t>& begins : next) begins.assign(num_actors + 1, 0);
  std::vector<std::pair<uint32_t, uint32_t>> channel_phases(device.channels.size());
  for (size_t c = 0; c < device.channels.size(); ++c) {
    const ChannelPlan& channel = device.channels[c];
    channel_phases[c] = {PhaseOfActor(device, channel.producer),
                         PhaseOfActor(device, channel.consumer)};
    if (channel_phases[c].first != channel_phases[c].second) {
      ++next[kProduced][channel.producer + 1];
      ++next[kConsumed][channel.consumer + 1];
    } else if (times_ != nullptr) {
      ++next[kWaits][channel.producer + 1];
    } else if (member_of[channel.producer] != kNone) {
      ++next[kWaits][channel.consumer + 1];
    }
  }
  std::array<std::vector<uint32_t>*, 3> lists = {&waits_, &produced_, &consumed_};
  for (size_t i = 0; i < lists.size(); ++i) {
    next[i][0] = static_cast<uint32_t>(lists[i]->size());
    for (uint32_t a = 0; a < num_actors; ++a) next[i][a + 1] += next[i][a];
    lists[i]->resize(next[i][num_actors]);
  }
  for (uint32_t c = 0; c < device.channels.size(); ++c) {
    const ChannelPlan& channel = device.channels[c];
    const auto [from, to] = channel_phases[c];
    if (from != to) {
      const auto counter = static_cast<uint32_t>(counters_.size());
      produced_[next[kProduced][channel.producer]++] = counter;
      consumed_[next[kConsumed][channel.consumer]++] = counter;
      AddCounter(d, c, from, to);
    } else if (times_ != nullptr) {
      waits_[next[kWaits][channel.producer]++] = first_item + channel.consumer;
    } else if (member_of[channel.producer] != kNone) {
      waits_[next[kWaits][channel.consumer]++] = member_of[channel.producer];
    }
  }
  // next[i][a] is now the end of actor a's entries.
  std::array<uint32_t, 3> ends = {};
  if (!items_.empty()) {
    ends = {items_.back().waits_end, items_.back().produced_end, items_.back().consumed_end};
  }
  std::vector<uint32_t> previous_of_group;
  if (times_ != nullptr) previous_of_group = PreviousOfGroups(plan_, d);
  for (uint32_t p = 0; p < device.phases.size(); ++p) {
    const PhasePlan& phase = device.phases[p];
    PhaseState& state = phases_[phase_base_[d] + p];
    state.first_item = static_cast<uint32_t>(items_.size());
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const std::array<uint32_t, 3> now = {next[kWaits][a], next[kProduced][a], next[kConsumed][a]};
      if (times_ == nullptr && member_of[a] == kNone && now == ends) continue;
      if (member_of[a] != kNone) {
        Member& member = members_[member_of[a]];
        member.phase = phase_base_[d] + p;
        member.item = static_cast<uint32_t>(items_.size());
      }
      items_.push_back({a, member_of[a], now[kWaits], now[kProduced], now[kConsumed]});
      ends = now;
    }
    state.end_item = static_cast<uint32_t>(items_.size());
    if (times_ != nullptr) AddTimes(state, previous_of_group);
  }
}

void Firing::AddTimes(const PhaseState& state, const std::vector<uint32_t>& previous) {
  const PhasePlan& phase = PlanOf(state);
  timed_items_.resize(state.end_item);
  for (uint32_t i = state.first_item; i < state.end_item; ++i) {
    // Every actor is an item, so those of a phase follow each other as its actors do.
    for (const uint32_t waiting : WaitsOf(i)) ++timed_items_[waiting].num_inputs;
    if (items_[i].member == kNone) {
      timed_items_[i].seconds = times_->ComputeSeconds(state.device, items_[i].actor);
      const ActorPlan& actor = plan_.devices[state.device].actors[items_[i].actor];
      if (actor.kind == ActorKind::kCopy && phase.lane != Lane::kFloating &&
          times_->HasCopyStreams(state.device)) {
        timed_items_[i].copy = static_cast<uint32_t>(copies_.size());
        copies_.push_back({phase_base_[state.device] + state.phase, i,
                           plan_.kernels[actor.kernel].op == "to_host"});
      }
    } else if (const uint32_t before = previous[items_[i].actor]; before != kNone) {
      timed_items_[state.first_item + (before - phase.first_actor)].next_of_group = i;
      ++timed_items_[i].num_inputs;
    }
  }
}

void Firing::AddCounter(uint32_t d, uint32_t c, uint32_t from, uint32_t to) {
  const DevicePlan& device = plan_.devices[d];
  const ChannelPlan& channel = device.channels[c];
  TokenCounter counter;
  counter.tokens = channel.initial;
  counter.credits = channel.capacity - channel.initial;
  counter.produce = channel.produce;
  counter.consume = channel.consume;
  counter.capacity = channel.capacity;
  counter.channel = c;
  counter.producer_phase = phase_base_[d] + from;
  counter.consumer_phase = phase_base_[d] + to;
  if (channel.reg != kNone &&
      device.registers[channel.reg].register_class == RegisterClass::kChannel) {
    const RegisterPlan& reg = device.registers[channel.reg];
    counter.reg = register_base_[d] + channel.reg;
    counter.tokens_per_slot = static_cast<uint32_t>(TokensPerSlot(
        plan_, reg, uint64_t{channel.produce} * FiringsPerStep(plan_, device.phases[from])));
    LiveSlots& slots = live_slots_[counter.reg];
    slots.slot_bytes = IsOnHost(device, reg) ? 0 : reg.slot_bytes;
    slots.counters.push_back(static_cast<uint32_t>(counters_.size()));
    Raise(d, counter, 0);
  }
  if (counter.credits < counter.produce) ++phases_[counter.producer_phase].num_closed;
  if (counter.tokens < counter.consume) ++phases_[counter.consumer_phase].num_closed;
  counters_.push_back(counter);
}

}  // namespace internal

}  // namespace penstock::planner
