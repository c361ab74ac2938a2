#include "planner/policy/pattern_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::planner::internal {
namespace {

// What can be in a slot: a phase of one of kVeePasses, W of either chunk, or nothing.
constexpr size_t kLastPass = kNumVeePasses - 1;
constexpr size_t kWeight = kNumVeePasses;
constexpr size_t kIdle = kNumVeePasses + 1;
constexpr size_t kNumSlotKinds = kNumVeePasses + 1;  // without kIdle

bool IsForward(size_t kind) { return kind < 2; }
bool IsBackward(size_t kind) { return kind == 2 || kind == 3; }

// The slots of each kind, by number: of a pass, the micro-batch; of W, its place among all B.
using SlotsByKind = std::array<std::vector<int>, kNumSlotKinds>;

// One group's slots: which kind of phase runs when.
class GroupSlots {
 public:
  explicit GroupSlots(SlotsByKind slots) : slots_(std::move(slots)) {
    size_t num_slots = 0;
    for (const std::vector<int>& of_kind : slots_) {
      if (!of_kind.empty()) num_slots = std::max<size_t>(num_slots, of_kind.back() + 1);
    }
    kinds_.assign(num_slots, kIdle);
    for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
      for (const int slot : slots_[kind]) kinds_[slot] = kind;
    }
  }

  const SlotsByKind& slots() const { return slots_; }
  const std::vector<size_t>& kinds() const { return kinds_; }  // by slot

  // Puts each W into the first idle slot after its B. REQUIRES: there are none yet.
  void PlaceWeights() {
    int num_waiting = 0;
    for (size_t slot = 0; slot < kinds_.size() || num_waiting > 0; ++slot) {
      if (slot == kinds_.size()) kinds_.push_back(kIdle);
      if (IsBackward(kinds_[slot])) ++num_waiting;
      if (kinds_[slot] != kIdle || num_waiting == 0) continue;
      kinds_[slot] = kWeight;
      slots_[kWeight].push_back(static_cast<int>(slot));
      --num_waiting;
    }
  }

  // The largest number of activations at once: of a chunk, from F to W. Each W that has no slot yet
  // counts as placed where PlaceWeights would. Call this before TryMove.
  int ComputePeak() {
    states_.clear();
    State state;
    int peak = 0;
    for (const size_t kind : kinds_) {
      states_.push_back(state);
      state = After(state, kind);
      peak = std::max(peak, state.num_held);
    }
    return peak;
  }

  // Moves a phase to an earlier slot that is idle, unless the peak would exceed `limit`.
  // REQUIRES: it does not exceed it now.
  bool TryMove(size_t kind, int number, int to, int limit) {
    const int from = slots_[kind][number];
    std::swap(kinds_[from], kinds_[to]);
    std::vector<State> changed;
    State state = states_[to];
    for (size_t slot = to; slot < kinds_.size(); ++slot) {
      if (slot > static_cast<size_t>(from) && state == states_[slot]) break;
      changed.push_back(state);
      state = After(state, kinds_[slot]);
      if (state.num_held <= limit) continue;
      std::swap(kinds_[from], kinds_[to]);
      return false;
    }
    std::copy(changed.begin(), changed.end(), states_.begin() + to);
    slots_[kind][number] = to;
    return true;
  }

  // The slot of the B with this number, of either chunk.
  int SlotOfBackward(int number) const {
    size_t i = 0;
    size_t j = 0;
    const auto is_first_next = [&] {
      if (j == slots_[3].size()) return true;
      return i < slots_[2].size() && slots_[2][i] < slots_[3][j];
    };
    for (; number > 0; --number) ++(is_first_next() ? i : j);
    return is_first_next() ? slots_[2][i] : slots_[3][j];
  }

 private:
  // Before a slot.
  struct State {
    int num_held = 0;     // activations
    int num_waiting = 0;  // W without a slot whose B have run
    friend bool operator==(const State&, const State&) = default;
  };

  State After(State state, size_t kind) const {
    const bool has_weights = !slots_[kWeight].empty();
    if (IsForward(kind)) ++state.num_held;
    if (IsBackward(kind) && !has_weights) ++state.num_waiting;
    if (kind == kWeight) --state.num_held;
    if (kind == kIdle && state.num_waiting > 0) {
      --state.num_waiting;
      --state.num_held;
    }
    return state;
  }

  SlotsByKind slots_;
  std::vector<size_t> kinds_;
  std::vector<State> states_;  // by slot
};

// The steps of pattern_schedule.h.
class PatternSchedule {
 public:
  PatternSchedule(const std::vector<Pattern>& patterns, int num_microbatches)
      : num_microbatches_(num_microbatches) {
    for (const Pattern& pattern : patterns) {
      SlotsByKind slots;
      for (size_t pass = 0; pass < kNumVeePasses; ++pass) {
        for (int m = 0; m < num_microbatches; ++m) {
          slots[pass].push_back(pattern[pass] + kPatternPeriod * m);
        }
      }
      groups_.emplace_back(std::move(slots));
    }
  }

  void Run() {
    PlaceWeights();
    MoveEarlier(/*moves_warm_up=*/true);
    Squeeze();
    MoveEarlier(/*moves_warm_up=*/false);
    PlaceWeights();
    Squeeze();
  }

  // Idle slots take W, first those of chunk 1.
  std::vector<PhaseChoice> OrderOf(size_t group) const {
    std::array<int, kNumVeePasses> counts = {};
    std::array<int, 2> num_weights = {};  // by chunk
    std::vector<PhaseChoice> order;
    const auto add_weight = [&] {
      const int chunk = num_weights[1] < counts[2] ? 1 : 0;
      if (chunk == 0 && num_weights[0] == counts[3]) return false;
      order.push_back({PhaseKind::kWeight, num_weights[chunk]++, chunk});
      return true;
    };
    for (const size_t kind : groups_[group].kinds()) {
      if (kind == kIdle) {
        add_weight();
      } else {
        order.push_back({kVeePasses[kind].kind, counts[kind]++, kVeePasses[kind].chunk});
      }
    }
    while (add_weight()) {
    }
    return order;
  }

 private:
  struct Entry {
    int slot = 0;
    size_t group = 0;
    size_t kind = 0;
    int number = 0;
  };

  void PlaceWeights() {
    for (GroupSlots& group : groups_) group.PlaceWeights();
  }

  // All phases by slot. Each reads the results of earlier slots only.
  std::vector<Entry> EntriesBySlot() const {
    std::vector<Entry> entries;
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
        const std::vector<int>& slots = groups_[g].slots()[kind];
        for (size_t i = 0; i < slots.size(); ++i) {
          entries.push_back({slots[i], g, kind, static_cast<int>(i)});
        }
      }
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.slot, a.group, a.kind) < std::tie(b.slot, b.group, b.kind);
    });
    return entries;
  }

  // The steady state begins when the first B of chunk 0 reaches the first group, the cool-down with
  // the last F of chunk 0 after that. With few micro-batches, there is none.
  void MoveEarlier(bool moves_warm_up) {
    enum class Part { kWarmUp, kSteady, kCoolDown };
    int peak = 0;
    for (GroupSlots& group : groups_) peak = std::max(peak, group.ComputePeak());
    Part part = Part::kWarmUp;
    for (const Entry& entry : EntriesBySlot()) {
      if (part == Part::kWarmUp && entry.kind == kLastPass && entry.group == 0) {
        part = Part::kSteady;
      }
      if (part == Part::kSteady) {
        const bool is_last_start = entry.kind == 0 && entry.number == num_microbatches_ - 1;
        if (is_last_start) part = Part::kCoolDown;
        continue;
      }
      if (part == Part::kWarmUp && !moves_warm_up) continue;
      GroupSlots& group = groups_[entry.group];
      for (int slot = EarliestSlot(entry); slot < entry.slot; ++slot) {
        if (group.kinds()[slot] != kIdle) continue;
        if (group.TryMove(entry.kind, entry.number, slot, peak)) break;
      }
    }
  }

  // After what the phase reads and the one of its kind before it.
  int EarliestSlot(const Entry& entry) const {
    const SlotsByKind& slots = groups_[entry.group].slots();
    int last = -1;
    if (entry.number > 0) last = slots[entry.kind][entry.number - 1];
    if (entry.kind == kWeight) {
      return std::max(last, groups_[entry.group].SlotOfBackward(entry.number)) + 1;
    }
    if (entry.kind > 0) last = std::max(last, slots[entry.kind - 1][entry.number]);
    if (const auto before = GroupBefore(entry.kind, entry.group, groups_.size())) {
      last = std::max(last, groups_[*before].slots()[entry.kind][entry.number]);
    }
    return last + 1;
  }

  // Afterwards, W have no slots.
  void Squeeze() {
    std::vector<SlotsByKind> squeezed(groups_.size());
    std::vector<int> last_slots(groups_.size(), -1);
    for (const Entry& entry : EntriesBySlot()) {
      int last = last_slots[entry.group];
      if (entry.kind < kNumVeePasses) {
        if (const auto before = GroupBefore(entry.kind, entry.group, groups_.size())) {
          last = std::max(last, squeezed[*before][entry.kind][entry.number]);
        }
      }
      last_slots[entry.group] = last + 1;
      squeezed[entry.group][entry.kind].push_back(last + 1);
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      squeezed[g][kWeight].clear();
      groups_[g] = GroupSlots(std::move(squeezed[g]));
    }
  }

  const int num_microbatches_;
  std::vector<GroupSlots> groups_;
};

}  // namespace

PipelineOrders OrdersOfPattern(const std::vector<Pattern>& pattern_of_group, int num_microbatches) {
  PatternSchedule schedule(pattern_of_group, num_microbatches);
  schedule.Run();
  PipelineOrders orders;
  for (size_t g = 0; g < pattern_of_group.size(); ++g) orders.push_back(schedule.OrderOf(g));
  return orders;
}

}  // namespace penstock::planner::internal
