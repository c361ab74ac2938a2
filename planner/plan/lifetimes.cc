#include "planner/plan/lifetimes.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "planner/plan/plan.h"

namespace penstock::planner {
namespace {

constexpr uint32_t kNever = kNone;

// How one phase uses a register.
struct PhaseUse {
  uint32_t phase = 0;
  PhaseSpan span;
  bool writes_first = false;  // the first access there
  // Nothing there touches it, but a floating phase that starts when the last instance is complete.
  bool is_before = false;
};

// The actors of the lanes that a floating phase waits for, and that wait for it.
struct Neighbours {
  std::vector<uint32_t> before;
  std::vector<uint32_t> after;
};

class UseFinder {
 public:
  UseFinder(const DevicePlan& device, const std::vector<PhaseChoice>& order,
            uint32_t num_microbatches)
      : device_(device),
        num_microbatches_(num_microbatches),
        num_phases_(device.phases.size()),
        actor_spans_(FindActorSpans(device)) {
    FindNeighbours();
    OrderPhases(order);
    FindReleases();
  }

  DeviceUses Run() {
    std::vector<std::vector<uint32_t>> actors(device_.registers.size());  // that touch each
    for (const PhasePlan& phase : device_.phases) {
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        for (const auto* operands : {&device_.actors[a].inputs, &device_.actors[a].outputs}) {
          for (const OperandPlan& operand : *operands) {
            if (operand.reg == kNone) continue;
            std::vector<uint32_t>& list = actors[operand.reg];
            if (list.empty() || list.back() != a) list.push_back(a);
          }
        }
      }
    }
    const std::vector<bool> is_passed_on = FindPassedOn();
    DeviceUses uses;
    for (uint32_t r = 0; r < device_.registers.size(); ++r) {
      uses.registers.push_back(UsesOf(r, actors[r], is_passed_on[r]));
    }
    uses.scratch.resize(device_.actors.size());
    for (uint32_t a = 0; a < device_.actors.size(); ++a) {
      if (device_.actors[a].workspace_bytes == 0) continue;
      uses.scratch[a] = WithinPhase({a}, actor_spans_[a]);
    }
    return uses;
  }

 private:
  Lane LaneOf(uint32_t phase) const { return device_.phases[phase].lane; }
  uint32_t PhaseOf(uint32_t actor) const { return actor_spans_[actor].phase; }

  // ---- Floating phases

  // Of floating phases of several actors. (What is received waits for nothing here, and what is
  // sent is awaited by nothing.)
  void FindNeighbours() {
    neighbours_.resize(num_phases_);
    for (const ChannelPlan& channel : device_.channels) {
      if (channel.reg == kNone || channel.initial > 0) continue;
      const uint32_t from = PhaseOf(channel.producer);
      const uint32_t to = PhaseOf(channel.consumer);
      const auto has_actors = [this](uint32_t p) {
        return LaneOf(p) == Lane::kFloating && device_.phases[p].num_actors > 1;
      };
      if (has_actors(to) && LaneOf(from) != Lane::kFloating) {
        neighbours_[to].before.push_back(channel.producer);
      }
      if (has_actors(from) && LaneOf(to) != Lane::kFloating) {
        neighbours_[from].after.push_back(channel.consumer);
      }
    }
  }

  // ---- The sequence of phases

  void OrderPhases(const std::vector<PhaseChoice>& order) {
    std::vector<uint32_t> computing;
    for (uint32_t p = 0; p < num_phases_; ++p) {
      if (LaneOf(p) == Lane::kCompute) computing.push_back(p);
      if (LaneOf(p) == Lane::kPerStep) per_step_.push_back(p);
    }
    for (const PhaseChoice& choice : order) {
      const auto it = std::find_if(computing.begin(), computing.end(), [&](uint32_t p) {
        return device_.phases[p].kind == choice.kind &&
               static_cast<int>(device_.phases[p].chunk) == choice.chunk;
      });
      if (it != computing.end()) {
        sequence_.push_back({*it, static_cast<uint32_t>(choice.microbatch)});
      }
    }
    if (order.empty() && computing.size() == 1) {
      for (uint32_t m = 0; m < num_microbatches_; ++m) sequence_.push_back({computing[0], m});
    }
    is_ordered_ = computing.empty() || !sequence_.empty();
    first_position_.assign(num_phases_, kNever);
    last_position_.assign(num_phases_, 0);
    for (uint32_t i = 0; i < sequence_.size(); ++i) {
      uint32_t& first = first_position_[sequence_[i].first];
      first = std::min(first, i);
      last_position_[sequence_[i].first] = i;
    }
    // Heads: a phase of the compute lane reads what they make in the same step.
    size_t num_heads = 0;
    for (const ChannelPlan& channel : device_.channels) {
      if (channel.initial > 0) continue;
      const uint32_t from = PhaseOf(channel.producer);
      if (LaneOf(from) != Lane::kPerStep) continue;
      if (LaneOf(PhaseOf(channel.consumer)) != Lane::kCompute) continue;
      const auto it = std::lower_bound(per_step_.begin(), per_step_.end(), from);
      num_heads = std::max(num_heads, static_cast<size_t>(it - per_step_.begin()) + 1);
    }
    num_heads_ = static_cast<uint32_t>(num_heads);
    rank_.assign(num_phases_, kNever);
    for (uint32_t i = 0; i < per_step_.size(); ++i) {
      const auto num_tails = static_cast<uint32_t>(per_step_.size()) - num_heads_;
      rank_[per_step_[i]] = i < num_heads_ ? num_tails + i : i - num_heads_;
    }
  }

  // ---- What starts only after an actor

  // Of actors of the compute lane: the rank (of the phases of the per-step lane, in the order in
  // which they follow the compute lane of a step: its tails, the next step's heads) of the first
  // phase that starts when all of a step's instances of the actor have completed. Of actors of the
  // per-step lane: the first position of the compute lane that starts when the actor has, in the
  // first step whose compute lane comes after it in the sequence.
  void FindReleases() {
    release_.assign(device_.actors.size(), kNever);
    if (!is_ordered_) return;
    // Of what floating phases pass on: where to.
    std::vector<uint32_t> passes_to(num_phases_, kNever);
    for (const ChannelPlan& channel : device_.channels) {
      const uint32_t from = PhaseOf(channel.producer);
      const uint32_t to = PhaseOf(channel.consumer);
      if (LaneOf(from) != Lane::kFloating || LaneOf(to) != Lane::kPerStep) continue;
      if (channel.initial > 0 || device_.phases[to].per_microbatch) continue;
      if (rank_[to] >= NumTails()) continue;
      passes_to[from] = std::min(passes_to[from], rank_[to]);
    }
    for (const ChannelPlan& channel : device_.channels) {
      AddFacts(channel, passes_to);
    }
    std::vector<uint32_t> of_phase(num_phases_, kNever);
    for (uint32_t p = 0; p < num_phases_; ++p) {
      const PhasePlan& phase = device_.phases[p];
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        of_phase[p] = std::min(of_phase[p], release_[a]);
      }
    }
    SpreadWithinPhases();
    // What starts after a later phase of the lane starts after this one, too.
    std::vector<uint32_t> by_time;
    for (uint32_t p = 0; p < num_phases_; ++p) {
      if (LaneOf(p) == Lane::kCompute && first_position_[p] != kNever) by_time.push_back(p);
    }
    std::sort(by_time.begin(), by_time.end(),
              [&](uint32_t a, uint32_t b) { return last_position_[a] > last_position_[b]; });
    SpreadAlong(by_time, of_phase);
    by_time = per_step_;
    std::sort(by_time.begin(), by_time.end(),
              [&](uint32_t a, uint32_t b) { return rank_[a] > rank_[b]; });
    SpreadAlong(by_time, of_phase);
  }

  uint32_t NumTails() const { return static_cast<uint32_t>(per_step_.size()) - num_heads_; }

  void Release(uint32_t actor, uint32_t when) { release_[actor] = std::min(release_[actor], when); }

  void AddFacts(const ChannelPlan& channel, const std::vector<uint32_t>& passes_to) {
    const uint32_t from = PhaseOf(channel.producer);
    const uint32_t to = PhaseOf(channel.consumer);
    const bool from_computes = LaneOf(from) == Lane::kCompute;
    if (from_computes && LaneOf(to) == Lane::kFloating && channel.initial == 0) {
      Release(channel.producer, passes_to[to]);
      return;
    }
    const bool to_computes = LaneOf(to) == Lane::kCompute;
    if (from_computes == to_computes) return;
    const uint32_t other = from_computes ? to : from;
    if (LaneOf(other) != Lane::kPerStep || device_.phases[other].per_microbatch) return;
    // All tokens of a step at once.
    const uint32_t tokens = from_computes ? channel.consume : channel.produce;
    const bool holds_one_step = channel.capacity == tokens;
    const bool is_tail = rank_[other] < NumTails();
    if (from_computes) {
      if (channel.initial > 0 || !is_tail) return;
      Release(channel.producer, rank_[other]);
      // The next step's tokens need the credits that the tail gives back.
      if (holds_one_step) Release(channel.consumer, first_position_[from]);
    } else if (!is_tail) {
      if (channel.initial > 0) return;
      Release(channel.producer, first_position_[to]);
      if (holds_one_step) Release(channel.consumer, rank_[other]);
    } else if (holds_one_step && channel.initial == tokens) {
      Release(channel.producer, first_position_[to]);
      Release(channel.consumer, rank_[other]);
    }
  }

  // An actor before another in its phase is done when that one is.
  void SpreadWithinPhases() {
    std::vector<std::pair<uint32_t, uint32_t>> orders;  // within phases
    for (const ChannelPlan& channel : device_.channels) {
      if (PhaseOf(channel.producer) != PhaseOf(channel.consumer)) {
        continue;
      }
      orders.emplace_back(channel.producer, channel.consumer);
    }
    std::sort(orders.begin(), orders.end(), std::greater<>());
    for (const auto& [before, after] : orders) Release(before, release_[after]);
  }

  // `by_time`: phases of one lane, the last first.
  void SpreadAlong(const std::vector<uint32_t>& by_time, const std::vector<uint32_t>& of_phase) {
    uint32_t later = kNever;
    for (const uint32_t p : by_time) {
      const PhasePlan& phase = device_.phases[p];
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        Release(a, later);
      }
      later = std::min(later, of_phase[p]);
    }
  }

  // ---- Uses of registers

  // Of each register: whether every floating phase that touches it gets it by a channel and passes
  // it on by one, or else lies between phases that it waits for and that wait for it, and no
  // channel of it has tokens from the start.
  std::vector<bool> FindPassedOn() const {
    std::vector<std::vector<uint32_t>> comes(device_.registers.size());  // floating phases
    std::vector<std::vector<uint32_t>> goes(device_.registers.size());
    std::vector<bool> is_passed_on(device_.registers.size(), true);
    for (const ChannelPlan& channel : device_.channels) {
      if (channel.reg == kNone) continue;
      const uint32_t from = PhaseOf(channel.producer);
      const uint32_t to = PhaseOf(channel.consumer);
      if (from == to) continue;
      if (channel.initial > 0) is_passed_on[channel.reg] = false;
      if (LaneOf(from) != Lane::kFloating) comes[channel.reg].push_back(to);
      if (LaneOf(to) != Lane::kFloating) goes[channel.reg].push_back(from);
    }
    for (uint32_t p = 0; p < num_phases_; ++p) {
      const PhasePlan& phase = device_.phases[p];
      if (phase.lane != Lane::kFloating) continue;
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        for (const auto* operands : {&device_.actors[a].inputs, &device_.actors[a].outputs}) {
          for (const OperandPlan& operand : *operands) {
            if (operand.reg == kNone) continue;
            const auto has = [p](const std::vector<uint32_t>& list) {
              return std::find(list.begin(), list.end(), p) != list.end();
            };
            const auto& [before, after] = neighbours_[p];
            if ((!has(comes[operand.reg]) && before.empty()) ||
                (!has(goes[operand.reg]) && after.empty())) {
              is_passed_on[operand.reg] = false;
            }
          }
        }
      }
    }
    return is_passed_on;
  }

  bool Writes(uint32_t actor, uint32_t reg) const {
    const std::vector<OperandPlan>& outputs = device_.actors[actor].outputs;
    return std::any_of(outputs.begin(), outputs.end(),
                       [reg](const OperandPlan& operand) { return operand.reg == reg; });
  }
  bool Reads(uint32_t actor, uint32_t reg) const {
    const std::vector<OperandPlan>& inputs = device_.actors[actor].inputs;
    return std::any_of(inputs.begin(), inputs.end(),
                       [reg](const OperandPlan& operand) { return operand.reg == reg; });
  }

  std::vector<Uses> UsesOf(uint32_t r, const std::vector<uint32_t>& actors, bool is_passed_on) {
    const RegisterPlan& reg = device_.registers[r];
    const std::vector<Uses> always = {{.always = true}};
    if (reg.register_class == RegisterClass::kState || !is_passed_on) return always;
    std::vector<uint32_t> in_lanes;
    std::vector<bool> is_used(num_phases_, false);  // by actors of the lanes
    for (const uint32_t a : actors) {
      if (LaneOf(PhaseOf(a)) == Lane::kFloating) continue;
      in_lanes.push_back(a);
      is_used[PhaseOf(a)] = true;
    }
    const bool floats = in_lanes.size() != actors.size();
    std::vector<bool> is_before(num_phases_, false);
    for (const uint32_t a : actors) {
      for (const uint32_t other : neighbours_[PhaseOf(a)].before) {
        if (is_used[PhaseOf(other)]) continue;
        is_before[PhaseOf(other)] = true;
        in_lanes.push_back(other);
      }
      for (const uint32_t other : neighbours_[PhaseOf(a)].after) {
        if (!is_used[PhaseOf(other)]) in_lanes.push_back(other);
      }
    }
    std::sort(in_lanes.begin(), in_lanes.end());
    in_lanes.erase(std::unique(in_lanes.begin(), in_lanes.end()), in_lanes.end());
    std::vector<PhaseUse> phases;
    for (const uint32_t a : in_lanes) {
      const uint32_t p = PhaseOf(a);
      if (phases.empty() || phases.back().phase != p) {
        const bool writes_first = is_before[p] || (Writes(a, r) && !Reads(a, r));
        phases.push_back({p, actor_spans_[a], writes_first, is_before[p]});
      }
      // What is only read at the begin of the phase is there from before.
      PhaseSpan& span = phases.back().span;
      span.first = std::min(span.first, actor_spans_[a].first);
      span.last = std::max(span.last, actor_spans_[a].last);
    }
    if (phases.empty()) return actors.empty() ? std::vector<Uses>(1) : always;
    if (phases.size() == 1 && !floats) {
      if (reg.register_class != RegisterClass::kWorkspace && !phases[0].writes_first) return always;
      return {WithinPhase(in_lanes, phases[0].span)};
    }
    if (!is_ordered_) return always;
    return AcrossPhases(reg, in_lanes, phases);
  }

  // How spans name an instance of the compute lane: see PhaseSpan.
  uint32_t InstanceAt(uint32_t position) const {
    const uint32_t p = sequence_[position].first;
    return num_microbatches_ > 1 && first_position_[p] == position ? FirstOf(p) : p;
  }
  uint32_t FirstOf(uint32_t phase) const { return static_cast<uint32_t>(num_phases_) + phase; }
  bool HasFirst(uint32_t phase) const {
    return HasFirstInstance(device_.phases[phase], num_microbatches_);
  }

  // Marks [first, last] of instances of a phase as in use.
  void Mark(uint32_t instances, int64_t first, int64_t last) {
    PhaseSpan& span = marks_[instances];
    span.first = std::min(span.first, first);
    span.last = std::max(span.last, last);
  }
  void Touch(uint32_t phase) {
    marks_[phase].is_touched = true;
    marks_[FirstOf(phase)].is_touched = true;
  }
  int64_t EndOf(uint32_t phase) const {
    return std::max<int64_t>(device_.phases[phase].num_actors, 1) - 1;
  }

  void ClearMarks() {
    marks_.resize(2 * num_phases_);
    is_held_.assign(marks_.size(), false);
    for (uint32_t i = 0; i < marks_.size(); ++i) marks_[i] = {i, INT64_MAX, -1, false};
  }
  Uses Marked() const {
    Uses uses;
    for (uint32_t i = 0; i < marks_.size(); ++i) {
      if (marks_[i].last < 0) {
        if (is_held_[i]) uses.held.push_back(i);
      } else {
        uses.spans.push_back(marks_[i]);
        // What is only kept here has been touched before in its lane: who is held here is held
        // there, too, or of the same lane.
        if (is_held_[i]) uses.spans.back() = {i, 0, EndOf(i % num_phases_), marks_[i].is_touched};
      }
    }
    return uses;
  }

  // Until phases of the other lane wait for the actors.
  void MarkUntilReleased(const std::vector<uint32_t>& actors) {
    uint32_t end_rank = 0;
    uint32_t end_position = 0;
    for (const uint32_t a : actors) {
      uint32_t& end = LaneOf(actor_spans_[a].phase) == Lane::kCompute ? end_rank : end_position;
      end = std::max(end, release_[a]);
    }
    for (const uint32_t p : per_step_) {
      if (rank_[p] < end_rank) is_held_[p] = true;
    }
    if (!is_ordered_ && end_position > 0) {
      for (uint32_t p = 0; p < num_phases_; ++p) {
        if (LaneOf(p) != Lane::kCompute) continue;
        is_held_[p] = true;
        if (HasFirst(p)) is_held_[FirstOf(p)] = true;
      }
    }
    for (uint32_t i = 0; i < std::min<size_t>(end_position, sequence_.size()); ++i) {
      is_held_[InstanceAt(i)] = true;
    }
  }

  // Of what lives in one phase. Instances of the phase follow each other.
  Uses WithinPhase(const std::vector<uint32_t>& actors, const PhaseSpan& span) {
    if (LaneOf(span.phase) == Lane::kFloating) return {.always = true};
    ClearMarks();
    Mark(span.phase, span.first, span.last);
    if (HasFirst(span.phase)) Mark(FirstOf(span.phase), span.first, span.last);
    Touch(span.phase);
    MarkUntilReleased(actors);
    return Marked();
  }

  // The place of a phase in the sequence: heads, compute lane, tails.
  int64_t PlaceOf(uint32_t phase, bool is_end) const {
    if (LaneOf(phase) == Lane::kCompute) {
      return num_heads_ + (is_end ? last_position_[phase] : first_position_[phase]);
    }
    const uint32_t rank = rank_[phase];
    return rank >= NumTails() ? rank - NumTails() : num_heads_ + int64_t(sequence_.size()) + rank;
  }
  uint32_t PhaseAt(int64_t place) const {
    if (place < num_heads_) return per_step_[place];
    const int64_t position = place - num_heads_;
    if (position < static_cast<int64_t>(sequence_.size())) return sequence_[position].first;
    return per_step_[num_heads_ + position - sequence_.size()];
  }

  std::vector<Uses> AcrossPhases(const RegisterPlan& reg, const std::vector<uint32_t>& actors,
                                 const std::vector<PhaseUse>& phases) {
    bool only_computes = true;
    for (const PhaseUse& use : phases) {
      only_computes = only_computes && LaneOf(use.phase) == Lane::kCompute;
      if (LaneOf(use.phase) == Lane::kCompute && first_position_[use.phase] == kNever) {
        return {{.always = true}};
      }
    }
    const bool is_dealt_out = only_computes && reg.per_microbatch &&
                              reg.slots <= kMaxDealtOutSlots && num_microbatches_ % reg.slots == 0;
    std::vector<Uses> uses;
    for (uint32_t slot = 0; slot < (is_dealt_out ? reg.slots : 1); ++slot) {
      uses.push_back(UsesOfSlot(reg, actors, phases, is_dealt_out, slot));
      if (uses.back().always) return {{.always = true}};
    }
    return uses;
  }

  // `is_dealt_out`: by the micro-batches that have the slot, else by all.
  Uses UsesOfSlot(const RegisterPlan& reg, const std::vector<uint32_t>& actors,
                  const std::vector<PhaseUse>& phases, bool is_dealt_out, uint32_t slot) {
    ClearMarks();
    std::vector<const PhaseUse*> use_of(num_phases_, nullptr);
    for (const PhaseUse& use : phases) {
      use_of[use.phase] = &use;
      Touch(use.phase);
    }
    // Places [first, last] of the sequence; partial uses of the phases at both ends.
    bool is_written_first = true;
    const auto mark = [&](int64_t first, int64_t last) {
      is_written_first = is_written_first && use_of[PhaseAt(first)]->writes_first;
      for (int64_t place = first; place <= last; ++place) {
        const uint32_t p = PhaseAt(place);
        const int64_t position = place - num_heads_;
        const bool computes = LaneOf(p) == Lane::kCompute;
        const bool repeats = LaneOf(p) == Lane::kPerStep && device_.phases[p].per_microbatch &&
                             num_microbatches_ > 1;
        const bool can_be_partial = (is_dealt_out || reg.slots == 1) && !repeats;
        const int64_t begin = place == first && can_be_partial ? use_of[p]->span.first : 0;
        const int64_t end = place == last && can_be_partial ? use_of[p]->span.last : EndOf(p);
        Mark(computes ? InstanceAt(static_cast<uint32_t>(position)) : p, begin, end);
      }
    };
    if (is_dealt_out) {
      std::vector<std::pair<int64_t, int64_t>> ranges(num_microbatches_, {INT64_MAX, -1});
      for (size_t i = 0; i < sequence_.size(); ++i) {
        if (use_of[sequence_[i].first] == nullptr) continue;
        const auto place = static_cast<int64_t>(num_heads_ + i);
        auto& [first, last] = ranges[sequence_[i].second];
        first = std::min(first, place);
        last = std::max(last, place);
      }
      for (uint32_t m = slot; m < num_microbatches_; m += reg.slots) {
        if (ranges[m].second < 0) return {.always = true};
        mark(ranges[m].first, ranges[m].second);
      }
    } else {
      int64_t first = INT64_MAX;
      int64_t last = -1;
      for (const PhaseUse& use : phases) {
        first = std::min(first, PlaceOf(use.phase, use.is_before));
        last = std::max(last, PlaceOf(use.phase, true));
      }
      mark(first, last);
    }
    if (!is_written_first) return {.always = true};
    MarkUntilReleased(actors);
    return Marked();
  }

  const DevicePlan& device_;
  const uint32_t num_microbatches_;
  const size_t num_phases_;
  const std::vector<PhaseSpan> actor_spans_;
  std::vector<Neighbours> neighbours_;                   // of each phase
  std::vector<std::pair<uint32_t, uint32_t>> sequence_;  // phase and micro-batch, compute lane
  std::vector<uint32_t> per_step_;                       // phases, in the order of the lane
  uint32_t num_heads_ = 0;                               // of per_step_
  bool is_ordered_ = false;
  std::vector<uint32_t> first_position_;  // of phases of the compute lane, in sequence_
  std::vector<uint32_t> last_position_;
  std::vector<uint32_t> rank_;     // of phases of the per-step lane, see FindReleases
  std::vector<uint32_t> release_;  // of each actor, likewise
  std::vector<PhaseSpan> marks_;   // of each phase, then of the first instances of each
  std::vector<bool> is_held_;      // likewise
};

}  // namespace

bool HasFirstInstance(const PhasePlan& phase, uint32_t num_microbatches) {
  return phase.lane == Lane::kCompute && num_microbatches > 1;
}

std::vector<PhaseSpan> FindActorSpans(const DevicePlan& device) {
  std::vector<PhaseSpan> spans(device.actors.size());
  std::vector<int64_t> awaited(device.actors.size(), 0);  // position after the last kernel
  const auto is_async = [&](uint32_t a) { return IsCommunication(device.actors[a].kind); };
  for (uint32_t p = 0; p < device.phases.size(); ++p) {
    const PhasePlan& phase = device.phases[p];
    for (uint32_t i = 0; i < phase.num_actors; ++i) {
      const uint32_t a = phase.first_actor + i;
      spans[a] = {p, i, is_async(a) ? int64_t{phase.num_actors} - 1 : i, true};
    }
  }
  for (const ChannelPlan& channel : device.channels) {
    const uint32_t p = spans[channel.producer].phase;
    if (spans[channel.consumer].phase != p) continue;
    const uint32_t first_actor = device.phases[p].first_actor;
    const int64_t producer = channel.producer - first_actor;
    const int64_t consumer = channel.consumer - first_actor;
    if (is_async(channel.producer)) {
      spans[channel.producer].last = std::min(spans[channel.producer].last, consumer - 1);
    } else {
      awaited[channel.consumer] = std::max(awaited[channel.consumer], producer + 1);
    }
  }
  // As if actors started in the planned order, where those after it need not wait for what one
  // has waited for. Any other order is made to agree (access_order.h).
  for (const PhasePlan& phase : device.phases) {
    int64_t drained = 0;
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      if (!is_async(a)) continue;
      drained = std::max(drained, awaited[a]);
      spans[a].first = drained;
    }
  }
  return spans;
}

DeviceUses FindUses(const DevicePlan& device, const std::vector<PhaseChoice>& order,
                    uint32_t num_microbatches) {
  return UseFinder(device, order, num_microbatches).Run();
}

}  // namespace penstock::planner
