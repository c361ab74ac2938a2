#include "planner/policy/zero_bubble_v_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <utility>

#include "planner/policy/vee_passes.h"

namespace penstock::planner::internal {
namespace {

constexpr size_t kFirstBackwardPass = 2;  // of kVeePasses
constexpr size_t kLastBackwardPass = 3;
constexpr double kVeeRounding = 1e-9;  // relative; less is a rounding error

size_t Index(PhaseKind kind) { return static_cast<size_t>(kind); }

class Planner {
 public:
  Planner(const Pipeline& pipeline, const ZeroBubbleVOptions& options)
      : pipeline_(pipeline),
        options_(options),
        num_groups_(static_cast<size_t>(pipeline.num_groups)),
        num_microbatches_(static_cast<size_t>(pipeline.num_microbatches)),
        groups_(num_groups_) {
    plan_.orders.resize(num_groups_);
    plan_.peak_activations.assign(num_groups_, 0);
    for (size_t g = 0; g < num_groups_; ++g) {
      double work_s = 0;  // of one micro-batch
      for (int chunk = 0; chunk < 2; ++chunk) {
        for (const PhaseKind kind :
             {PhaseKind::kForward, PhaseKind::kBackward, PhaseKind::kWeight}) {
          work_s += Seconds(g, chunk, kind);
        }
      }
      groups_[g].busy_s = work_s * pipeline.num_microbatches;
      plan_.span_s = std::max(plan_.span_s, groups_[g].busy_s);
      for (size_t pass = 0; pass < kNumVeePasses; ++pass) SetLatency(g, pass);
    }
    rounding_s_ = kVeeRounding * plan_.span_s;
  }

  std::optional<ZeroBubbleVPlan> Run() {
    RunFirstForwards();
    LevelForwards();
    while (Count(0, kLastBackwardPass) < num_microbatches_) {
      const bool adds_backwards = AddBackwards();
      const bool adds_forwards = AddForwards();
      if (!adds_backwards && !adds_forwards) return std::nullopt;
    }
    for (size_t g = 0; g < num_groups_; ++g) {
      while (HasWeight(g)) AddWeight(g);
      plan_.slack_s.push_back(plan_.span_s - groups_[g].span_s());
    }
    return std::move(plan_);
  }

 private:
  struct Group {
    std::array<std::vector<double>, kNumVeePasses> ends;  // of the phases of each pass so far
    std::array<double, kNumVeePasses> latency_s = {};     // from the group before in the pass
    std::deque<PhaseChoice> weights;                      // whose B has run
    double now = 0;
    double memory = 0;  // as the limits count it
    double held = 0;    // until W ends
    double busy_s = 0;  // by all its phases of the step
    double waited_s = 0;
    // From its first phase to its last, if it does not wait again.
    double span_s() const { return busy_s + waited_s; }
  };

  const VirtualStage& StageOf(size_t g, int chunk) const {
    return pipeline_.stages[pipeline_.StageOf(static_cast<int>(g), chunk)];
  }
  double Seconds(size_t g, int chunk, PhaseKind kind) const {
    const VirtualStage& stage = StageOf(g, chunk);
    return stage.kinds[Index(kind)] ? stage.seconds[Index(kind)] : 0;
  }
  double Seconds(size_t g, size_t pass) const {
    return Seconds(g, kVeePasses[pass].chunk, kVeePasses[pass].kind);
  }
  // What a phase adds to the memory of its group.
  double MemoryOf(size_t g, int chunk, PhaseKind kind) const {
    const VirtualStage& stage = StageOf(g, chunk);
    if (kind == PhaseKind::kForward) return stage.activation;
    const bool has_weight = stage.kinds[Index(PhaseKind::kWeight)];
    const double share_of_b = has_weight ? options_.share_freed_by_b : 1;
    return -stage.activation * (kind == PhaseKind::kBackward ? share_of_b : 1 - share_of_b);
  }
  double MemoryOf(size_t g, size_t pass) const {
    return MemoryOf(g, kVeePasses[pass].chunk, kVeePasses[pass].kind);
  }
  bool Fits(size_t g, double more) const {
    return groups_[g].memory + more <= options_.memory_limits[g] * (1 + kVeeRounding);
  }
  // What must be free for a phase.
  double RoomFor(size_t g, size_t pass) const {
    return options_.keeps_room && pass == 0 ? RoomForBoth(g) : MemoryOf(g, pass);
  }
  // An activation of each chunk.
  double RoomForBoth(size_t g) const { return MemoryOf(g, 0) + MemoryOf(g, 1); }

  void SetLatency(size_t g, size_t pass) {
    const std::optional<size_t> before = GroupBefore(pass, g, num_groups_);
    if (!before.has_value()) return;
    const int chunk = kVeePasses[pass].chunk;
    groups_[g].latency_s[pass] =
        pipeline_.LatencyS(pipeline_.StageOf(static_cast<int>(*before), chunk),
                           pipeline_.StageOf(static_cast<int>(g), chunk));
  }

  size_t Count(size_t g, size_t pass) const { return groups_[g].ends[pass].size(); }
  bool HasWeight(size_t g) const { return !groups_[g].weights.empty(); }

  // Whether there is a next phase of the pass, and all that it reads is planned.
  bool IsReady(size_t g, size_t pass) const {
    const size_t m = Count(g, pass);
    if (m == num_microbatches_ || (pass > 0 && Count(g, pass - 1) <= m)) return false;
    const std::optional<size_t> before = GroupBefore(pass, g, num_groups_);
    return !before.has_value() || Count(*before, pass) > m;
  }

  // When the input of the next phase of the pass arrives from another group; 0 if it has none.
  double ArrivalS(size_t g, size_t pass) const {
    const std::optional<size_t> before = GroupBefore(pass, g, num_groups_);
    const VeePass& what = kVeePasses[pass];
    const double ready_s = what.kind == PhaseKind::kForward ? StageOf(g, what.chunk).ready_s : 0;
    if (!before.has_value()) return ready_s;
    const double sent_s = groups_[*before].ends[pass][Count(g, pass)];
    return std::max(ready_s, sent_s + groups_[g].latency_s[pass]);
  }

  // Runs the phase now.
  void Record(size_t g, const PhaseChoice& phase) {
    Group& group = groups_[g];
    const double activation = StageOf(g, phase.chunk).activation;
    group.now += Seconds(g, phase.chunk, phase.kind);
    group.memory += MemoryOf(g, phase.chunk, phase.kind);
    if (phase.kind == PhaseKind::kForward) group.held += activation;
    if (phase.kind == PhaseKind::kWeight) group.held -= activation;
    plan_.peak_activations[g] = std::max(plan_.peak_activations[g], group.held);
    if (StageOf(g, phase.chunk).kinds[Index(phase.kind)]) plan_.orders[g].push_back(phase);
  }

  void Add(size_t g, size_t pass) {
    Group& group = groups_[g];
    const VeePass& what = kVeePasses[pass];
    const auto m = static_cast<int>(Count(g, pass));
    const double begin = std::max(group.now, ArrivalS(g, pass));
    if (Count(g, 0) > 0) group.waited_s += begin - group.now;
    plan_.span_s = std::max(plan_.span_s, group.span_s());
    group.now = begin;
    Record(g, {what.kind, m, what.chunk});
    group.ends[pass].push_back(group.now);
    if (what.kind != PhaseKind::kBackward) return;
    if (StageOf(g, what.chunk).kinds[Index(PhaseKind::kWeight)]) {
      group.weights.push_back({PhaseKind::kWeight, m, what.chunk});
    } else {
      group.held -= StageOf(g, what.chunk).activation;
    }
  }

  void AddWeight(size_t g) {
    Record(g, groups_[g].weights.front());
    groups_[g].weights.pop_front();
  }

  void RunFirstForwards() {
    for (size_t g = 0; g < num_groups_; ++g) Add(g, 0);
    for (size_t g = num_groups_; g-- > 0;) {
      if (g + 1 < num_groups_) {
        const double arrival = ArrivalS(g, 1);
        while (groups_[g].now + Seconds(g, 0) <= arrival + rounding_s_ && CanAddWave(g)) {
          for (size_t j = 0; j <= g; ++j) Add(j, 0);
        }
      }
      Add(g, 1);
    }
  }

  // Whether all groups up to `last` can run one more F of chunk 0. The memory that `last` must have
  // for it allows for what the groups before it run while F0 of chunk 1 returns to them.
  bool CanAddWave(size_t last) const {
    if (Count(last, 0) == num_microbatches_) return false;
    for (size_t g = 0; g < last; ++g) {
      if (!Fits(g, RoomForBoth(g))) return false;
    }
    return Fits(last, static_cast<double>(last + 1) * RoomForBoth(last));
  }

  // Brings each group to as many F as the group before it has.
  void LevelForwards() {
    size_t pass = 0;
    const auto count_both = [&](size_t g) { return Count(g, 0) + Count(g, 1); };
    for (size_t g = 1; g < num_groups_; ++g) {
      bool has_stalled = false;
      while (count_both(g) < count_both(g - 1) ||
             (Count(g, 1) <= Count(g - 1, 1) && Count(g - 1, 1) < num_microbatches_)) {
        bool adds = false;
        for (size_t j = num_groups_; j-- > g;) {
          if (!IsReady(j, pass) || !Fits(j, RoomFor(j, pass))) continue;
          Add(j, pass);
          adds = true;
        }
        pass = 1 - pass;
        if (!adds && has_stalled) break;
        has_stalled = !adds;
      }
    }
  }

  // One B on each group: of chunk 0 if the group that it comes from has run it, else of chunk 1.
  bool AddBackwards() {
    std::vector<bool> is_last_pass(num_groups_, false);
    for (size_t g = 0; g < num_groups_; ++g) {
      const size_t m = Count(g, kLastBackwardPass);
      if (m >= Count(g, kFirstBackwardPass)) continue;
      is_last_pass[g] = g + 1 == num_groups_ || Count(g + 1, kLastBackwardPass) > m ||
                        Count(g, kFirstBackwardPass) == num_microbatches_;
    }
    bool adds = false;
    for (size_t g = num_groups_; g-- > 0;) {
      if (is_last_pass[g]) adds |= TryAdd(g, kLastBackwardPass);
    }
    for (size_t g = 0; g < num_groups_; ++g) {
      if (!is_last_pass[g]) adds |= TryAdd(g, kFirstBackwardPass);
    }
    return adds;
  }

  // One F on each group: of chunk 1 if it is ready, else of chunk 0.
  bool AddForwards() {
    bool adds = false;
    for (size_t g = 0; g < num_groups_; ++g) adds |= TryAdd(g, IsReady(g, 1) ? 1 : 0);
    return adds;
  }

  // Adds the next phase of the pass, if it is ready and W can make room for it.
  bool TryAdd(size_t g, size_t pass) {
    if (!IsReady(g, pass)) return false;
    while (!Fits(g, RoomFor(g, pass))) {
      if (!HasWeight(g)) return false;
      AddWeight(g);
    }
    FillWait(g, pass);
    Add(g, pass);
    return true;
  }

  // Adds W that end before the input of the next phase of the pass arrives, and perhaps one more.
  void FillWait(size_t g, size_t pass) {
    const Group& group = groups_[g];
    const double arrival = ArrivalS(g, pass);
    const auto ends_before_arrival = [&] {
      const PhaseChoice& weight = group.weights.front();
      return group.now + Seconds(g, weight.chunk, weight.kind) <= arrival + rounding_s_;
    };
    while (HasWeight(g) && ends_before_arrival()) AddWeight(g);
    if (!HasWeight(g)) return;
    if (pass < kFirstBackwardPass && !options_.fills_short_waits_for_f) return;
    if (pass == kFirstBackwardPass && !options_.fills_short_waits_for_b) return;
    if (arrival - group.now > MostWaitS(g) + rounding_s_) AddWeight(g);
  }

  // How much longer the group may wait.
  double MostWaitS(size_t g) const {
    const double behind_last_s = plan_.span_s - groups_[g].span_s();
    if (options_.may_wait_s.empty()) return behind_last_s;
    return std::max(behind_last_s, options_.may_wait_s[g] - groups_[g].waited_s);
  }

  const Pipeline& pipeline_;
  const ZeroBubbleVOptions& options_;
  const size_t num_groups_;
  const size_t num_microbatches_;
  double rounding_s_ = 0;
  std::vector<Group> groups_;
  ZeroBubbleVPlan plan_;  // span_s is that of the phases so far, as Group::span_s
};

}  // namespace

std::optional<ZeroBubbleVPlan> PlanZeroBubbleV(const Pipeline& pipeline,
                                               const ZeroBubbleVOptions& options) {
  return Planner(pipeline, options).Run();
}

}  // namespace penstock::planner::internal
