// Zero bubble pipelines: Qi et al., "Zero Bubble Pipeline Parallelism" (2023). The backward phase
// is split: B makes the gradient that the stage before waits for, W those of the weights, which
// nothing waits for, so it fills the time in which a group would wait.

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/strings.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"

namespace penstock::planner::internal {
namespace {

constexpr auto kF = static_cast<size_t>(PhaseKind::kForward);
constexpr auto kB = static_cast<size_t>(PhaseKind::kBackward);
constexpr auto kW = static_cast<size_t>(PhaseKind::kWeight);

// The handcrafted schedules of the paper: 1F1B with a longer warm-up (H2), whose W lag behind.
//
// H1 keeps as many micro-batches as 1F1B does on its first stage, H2 about twice as many. 3 stages,
// 4 micro-batches, H1:
//   group 0: F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3
//   group 1: F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
//   group 2: F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
class ZeroBubbleHandcrafted : public Policy {
 public:
  ZeroBubbleHandcrafted(std::string_view name, bool is_h2) : name_(name), is_h2_(is_h2) {}
  std::string_view name() const override { return name_; }
  PolicyNeeds needs() const override { return {.splits_backward = true, .max_chunks = 1}; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    const int num_microbatches = context.num_microbatches;
    const int after = context.num_stages - context.stage;  // stages from this one on
    const int lead = std::clamp(is_h2_ ? 2 * after - 1 : after, 1, std::max(num_microbatches, 1));
    const int lag = is_h2_ ? 2 * context.stage : context.stage;
    std::vector<PhaseChoice> order;
    const auto add = [&](PhaseKind kind, int microbatch) {
      if (context.has(kind)) order.push_back({kind, microbatch});
    };
    for (int i = 0; i < num_microbatches + lead - 1; ++i) {
      if (i < num_microbatches) add(PhaseKind::kForward, i);
      const int m = i - lead + 1;
      if (m < 0) continue;
      add(PhaseKind::kBackward, m);
      if (m >= lag) add(PhaseKind::kWeight, m - lag);
    }
    for (int m = std::max(num_microbatches - lag, 0); m < num_microbatches; ++m) {
      add(PhaseKind::kWeight, m);
    }
    return order;
  }

 private:
  const std::string_view name_;
  const bool is_h2_;
};

// The authors' planner for a limit of memory: a greedy construction with three yes-or-no choices,
// of whose eight results the best counts.
//
//   1. Warm-up. F0 on every group; then, from the last group to the first, as many more F as fit
//      into memory and into the time until B0 can start. A group never runs more of them than the
//      group before it. Then B0 on every group, from the last.
//   2. For each further micro-batch: one more F on each group from one that can use it on, in the
//      order of the groups, then one more B, from the last group to the first. Before a phase, W
//      make room in memory, and fill the time until what it reads arrives. A W that takes longer
//      than that is put there if waiting would make this the group that has waited longest.
//   3. The W that are left.
//
class GreedyPlan {
 public:
  struct Choices {
    bool may_delay_first_backward =
        false;                         // the last F of the warm-up may end after B0 could start
    bool holds_forwards_back = false;  // an F that the next group cannot use yet may wait
    bool fills_short_waits = false;    // with W that take longer than the wait
  };

  // Limits of memory by group; the part of what F keeps that B frees, and W the rest.
  GreedyPlan(const Pipeline& pipeline, const Choices& choices, std::vector<double> limits,
             double freed_by_backward)
      : pipeline_(pipeline),
        choices_(choices),
        limits_(std::move(limits)),
        freed_by_backward_(freed_by_backward),
        num_groups_(static_cast<size_t>(pipeline.num_groups)),
        num_microbatches_(static_cast<size_t>(pipeline.num_microbatches)),
        groups_(num_groups_),
        orders_(num_groups_) {}

  // Nothing if a group runs out of memory.
  std::optional<PipelineOrders> Run() {
    WarmUp();
    for (size_t m = 1; m < num_microbatches_; ++m) {
      if (!AddForwards() || !AddBackwards()) return std::nullopt;
    }
    for (size_t g = 0; g < num_groups_; ++g) {
      while (groups_[g].count(kW) < num_microbatches_) Add(g, kW);
    }
    return std::move(orders_);
  }

  // REQUIRES: Run has returned orders. The longest time from the first to the last phase of a
  // group.
  double SpanS() const {
    double span = 0;
    for (const Group& group : groups_) span = std::max(span, group.now - group.begin);
    return span;
  }

 private:
  struct Group {
    std::array<std::vector<double>, kNumPolicyKinds> ends;  // of the phases of each kind so far
    double begin = 0;
    double now = 0;
    double waited = 0;  // since its first phase
    double memory = 0;
    size_t count(size_t kind) const { return ends[kind].size(); }
  };

  const VirtualStage& StageOf(size_t g) const { return pipeline_.stages[g]; }
  double Seconds(size_t g, size_t kind) const { return StageOf(g).seconds[kind]; }
  double MemoryOf(size_t g, size_t kind) const {
    const double activation = StageOf(g).activation;
    if (kind == kF) return activation;
    return -activation * (kind == kB ? freed_by_backward_ : 1 - freed_by_backward_);
  }
  bool Fits(size_t g, double memory) const { return memory <= limits_[g] * (1 + 1e-9); }
  bool HasW(size_t g) const { return groups_[g].count(kW) < groups_[g].count(kB); }
  double LatencyS(size_t from, size_t to) const {
    return pipeline_.LatencyS(static_cast<int>(from), static_cast<int>(to));
  }
  double MostWaited() const {
    double most = 0;
    for (const Group& group : groups_) most = std::max(most, group.waited);
    return most;
  }

  // When what the next phase of a kind reads from another group has arrived; 0 if nothing.
  double ArrivalOf(size_t g, size_t kind) const {
    const size_t m = groups_[g].count(kind);
    if (kind == kF && g > 0) return groups_[g - 1].ends[kF][m] + LatencyS(g - 1, g);
    if (kind == kB && g + 1 < num_groups_) return groups_[g + 1].ends[kB][m] + LatencyS(g + 1, g);
    return 0;
  }

  void Add(size_t g, size_t kind) {
    Group& group = groups_[g];
    const double begin = std::max(group.now, ArrivalOf(g, kind));
    if (group.count(kF) > 0) {
      group.waited += begin - group.now;
    } else {
      group.begin = begin;
    }
    group.now = begin + Seconds(g, kind);
    group.memory += MemoryOf(g, kind);
    const PhaseChoice phase = {static_cast<PhaseKind>(kind), static_cast<int>(group.count(kind))};
    if (StageOf(g).kinds[kind]) orders_[g].push_back(phase);
    group.ends[kind].push_back(group.now);
  }

  void WarmUp() {
    for (size_t g = 0; g < num_groups_; ++g) Add(g, kF);
    std::vector<size_t> more(num_groups_, 0);  // F
    double first_backward_ends = 0;
    for (size_t g = num_groups_; g-- > 0;) {
      const Group& group = groups_[g];
      if (g + 1 == num_groups_) {
        first_backward_ends = group.now + Seconds(g, kB);
        continue;
      }
      const double can_start = first_backward_ends + LatencyS(g + 1, g);
      double memory = group.memory;
      double now = group.now;
      while (group.count(kF) + more[g] < num_microbatches_ && Fits(g, memory + MemoryOf(g, kF))) {
        const bool is_late =
            choices_.may_delay_first_backward ? now + Seconds(g, kF) > can_start : now >= can_start;
        if (is_late) break;
        memory += MemoryOf(g, kF);
        now += Seconds(g, kF);
        ++more[g];
      }
      first_backward_ends = std::max(now, can_start) + Seconds(g, kB);
    }
    // Fewer than the group before, unless that has all of them.
    for (size_t g = 1; g < num_groups_; ++g) {
      const bool has_all = 1 + more[g - 1] == num_microbatches_;
      while (more[g] > 0 && more[g] >= more[g - 1] && !(has_all && more[g] == more[g - 1])) {
        --more[g];
      }
    }
    for (size_t g = 0; g < num_groups_; ++g) {
      for (size_t i = 0; i < more[g]; ++i) Add(g, kF);
    }
    for (size_t g = num_groups_; g-- > 0;) Add(g, kB);
  }

  bool AddForwards() {
    std::vector<bool> adds(num_groups_, false);
    for (size_t g = 0; g < num_groups_; ++g) {
      adds[g] = groups_[g].count(kF) < num_microbatches_ && !HoldsBack(g);
    }
    for (size_t g = num_groups_ - 1; g-- > 0;) adds[g] = adds[g] && adds[g + 1];
    for (size_t g = 0; g < num_groups_; ++g) {
      if (!adds[g]) continue;
      if (!MakeRoom(g, kF)) return false;
      if (g > 0) FillWait(g, kF);
      Add(g, kF);
    }
    return true;
  }

  bool AddBackwards() {
    for (size_t g = num_groups_; g-- > 0;) {
      if (!MakeRoom(g, kB)) return false;
      if (g + 1 < num_groups_) FillWait(g, kB);
      // The first group has nothing else to do.
      while (g == 0 && groups_[g].count(kF) == num_microbatches_ && HasW(g)) Add(g, kW);
      Add(g, kB);
    }
    return true;
  }

  // Whether an F of the group would only wait at the next one, which has several.
  bool HoldsBack(size_t g) const {
    if (!choices_.holds_forwards_back || g + 1 >= num_groups_) return false;
    const Group& group = groups_[g];
    const Group& next = groups_[g + 1];
    if (group.count(kF) < next.count(kF) + 2) return false;
    const double needed_at =
        next.now + Seconds(g + 1, kF) + Seconds(g + 1, kB) + LatencyS(g, g + 1);
    if (group.now >= needed_at) return true;
    double memory = group.memory + MemoryOf(g, kF);
    double seconds = Seconds(g, kF);
    for (size_t w = group.count(kW); !Fits(g, memory) && w < group.count(kB); ++w) {
      memory += MemoryOf(g, kW);
      seconds += Seconds(g, kW);
    }
    if (group.now + seconds <= needed_at) return false;
    return needed_at - group.now <= MostWaited() - group.waited;
  }

  bool MakeRoom(size_t g, size_t kind) {
    while (!Fits(g, groups_[g].memory + MemoryOf(g, kind))) {
      if (!HasW(g)) return false;
      Add(g, kW);
    }
    return true;
  }

  void FillWait(size_t g, size_t kind) {
    const Group& group = groups_[g];
    const double arrival = ArrivalOf(g, kind);
    while (HasW(g) && group.now + Seconds(g, kW) <= arrival) Add(g, kW);
    if (!HasW(g) || group.now >= arrival) return;
    const bool is_short = arrival - group.now <= MostWaited() - group.waited;
    if (!is_short || choices_.fills_short_waits) Add(g, kW);
  }

  const Pipeline& pipeline_;
  const Choices choices_;
  const std::vector<double> limits_;
  const double freed_by_backward_;
  const size_t num_groups_;
  const size_t num_microbatches_;
  std::vector<Group> groups_;
  PipelineOrders orders_;
};

// zb-1p keeps as much as 1F1B does on its first stage, zb-2p twice as much, if B frees half of what
// F keeps, as in the paper's measurements. Within a limit of the pipeline, W frees all of it, as
// Timeline::peak_activations counts.
class ZeroBubblePlanned : public Policy {
 public:
  ZeroBubblePlanned(std::string_view name, double factor) : name_(name), factor_(factor) {}
  std::string_view name() const override { return name_; }
  PolicyNeeds needs() const override { return {.splits_backward = true, .max_chunks = 1}; }
  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    std::vector<double> limits;
    for (const VirtualStage& stage : pipeline.stages) {
      const double limit = factor_ * pipeline.num_groups * stage.activation;
      const bool is_limited = pipeline.memory_limit > 0 && pipeline.memory_limit < limit;
      limits.push_back(is_limited ? pipeline.memory_limit : limit);
    }
    std::optional<PipelineOrders> best;
    double best_span_s = std::numeric_limits<double>::infinity();
    for (int bits = 0; bits < 8; ++bits) {
      GreedyPlan plan(pipeline, {(bits & 4) == 0, (bits & 2) == 0, (bits & 1) == 0}, limits,
                      pipeline.memory_limit > 0 ? 0 : 0.5);
      std::optional<PipelineOrders> orders = plan.Run();
      if (!orders.has_value() || plan.SpanS() >= best_span_s) continue;
      best_span_s = plan.SpanS();
      best = std::move(orders);
    }
    if (best.has_value()) return *std::move(best);
    return absl::ResourceExhaustedError(
        StrCat("no order keeps within ", pipeline.memory_limit, " activations a group"));
  }

 private:
  const std::string_view name_;
  const double factor_;
};

}  // namespace

std::unique_ptr<const Policy> MakeZeroBubbleH1() {
  return std::make_unique<ZeroBubbleHandcrafted>("zb-h1", false);
}
std::unique_ptr<const Policy> MakeZeroBubbleH2() {
  return std::make_unique<ZeroBubbleHandcrafted>("zb-h2", true);
}
std::unique_ptr<const Policy> MakeZeroBubble1p() {
  return std::make_unique<ZeroBubblePlanned>("zb-1p", 1);
}
std::unique_ptr<const Policy> MakeZeroBubble2p() {
  return std::make_unique<ZeroBubblePlanned>("zb-2p", 2);
}

}  // namespace penstock::planner::internal
