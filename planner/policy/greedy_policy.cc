#include "planner/policy/greedy_policy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr auto kF = static_cast<size_t>(PhaseKind::kForward);
constexpr auto kB = static_cast<size_t>(PhaseKind::kBackward);
constexpr auto kW = static_cast<size_t>(PhaseKind::kWeight);

class GreedyRun {
 public:
  GreedyRun(const Pipeline& pipeline, const PhaseBefore& before,
            const std::vector<double>& most_held)
      : pipeline_(pipeline),
        before_(before),
        most_held_(most_held),
        num_microbatches_(static_cast<size_t>(pipeline.num_microbatches)),
        ends_(pipeline.stages.size()),
        now_(pipeline.num_groups, 0),
        held_(pipeline.num_groups, 0),
        orders_(pipeline.num_groups) {
    for (auto& sources : sources_) sources.resize(pipeline.stages.size());
    for (const PipelineEdge& edge : pipeline.edges) {
      sources_[edge.is_forward ? kF : kB][edge.to].push_back(
          {edge.from, pipeline.LatencyS(edge.from, edge.to)});
    }
  }

  absl::StatusOr<PipelineOrders> Run() {
    size_t left = 0;
    for (const VirtualStage& stage : pipeline_.stages) {
      for (const bool has : stage.kinds) left += has ? num_microbatches_ : 0;
    }
    // Whoever can start first, starts: what others start later cannot make anything ready before.
    for (; left > 0; --left) {
      double first = kNever;
      int group = 0;
      for (int g = 0; g < pipeline_.num_groups; ++g) {
        const double start = EarliestStart(g);
        if (start >= first) continue;
        first = start;
        group = g;
      }
      if (first == kNever) return absl::ResourceExhaustedError(DescribeHolders());
      Start(group, Choose(group, first), first);
    }
    return std::move(orders_);
  }

 private:
  struct Source {
    int stage = 0;
    double latency_s = 0;
  };

  // When what the next phase of a kind reads has arrived; kNever: not known, or there is none.
  double ReadyS(int stage, size_t kind) const {
    const VirtualStage& at = pipeline_.stages[stage];
    const auto& ends = ends_[stage];
    const size_t m = ends[kind].size();
    if (!at.kinds[kind] || m == num_microbatches_) return kNever;
    double ready = kind == kF ? at.ready_s : 0;
    if (const int before = at.kind_before(kind); before >= 0) {
      if (ends[before].size() <= m) return kNever;
      ready = ends[before][m];
    }
    if (kind == kW) return ready;
    for (const Source& source : sources_[kind][stage]) {
      if (!pipeline_.stages[source.stage].kinds[kind]) continue;
      const std::vector<double>& made = ends_[source.stage][kind];
      if (made.size() <= m) return kNever;
      ready = std::max(ready, made[m] + source.latency_s);
    }
    return ready;
  }

  bool Fits(int group, int stage, size_t kind) const {
    if (kind != kF || most_held_[group] <= 0) return true;
    const double held = held_[group] + pipeline_.stages[stage].activation;
    return held <= most_held_[group] * (1 + 1e-9);
  }

  // Calls visit(stage, kind, ready_s) for each phase that the group could run next.
  template <typename Visit>
  void ForEachCandidate(int group, const Visit& visit) const {
    for (int c = 0; c < pipeline_.num_chunks(); ++c) {
      const int stage = pipeline_.StageOf(group, c);
      for (const size_t kind : {kF, kB, kW}) {
        const double ready = ReadyS(stage, kind);
        if (ready != kNever && Fits(group, stage, kind)) visit(stage, kind, ready);
      }
    }
  }

  double EarliestStart(int group) const {
    double start = kNever;
    ForEachCandidate(group, [&](int, size_t, double ready) {
      start = std::min(start, std::max(ready, now_[group]));
    });
    return start;
  }

  ReadyPhase Choose(int group, double now) const {
    std::optional<ReadyPhase> best;
    ForEachCandidate(group, [&](int stage, size_t kind, double ready) {
      if (ready > now) return;
      const VirtualStage& at = pipeline_.stages[stage];
      const ReadyPhase phase = {
          {static_cast<PhaseKind>(kind), static_cast<int>(ends_[stage][kind].size()), at.chunk},
          stage,
          ready,
          at.seconds[kind]};
      if (!best.has_value() || before_(phase, *best) ||
          (!before_(*best, phase) && phase.ready_s < best->ready_s)) {
        best = phase;
      }
    });
    return *best;
  }

  void Start(int group, const ReadyPhase& phase, double now) {
    const VirtualStage& at = pipeline_.stages[phase.stage];
    const auto kind = static_cast<size_t>(phase.phase.kind);
    if (kind == kF) held_[group] += at.activation;
    if (phase.phase.kind == at.last_kind()) held_[group] -= at.activation;
    now_[group] = now + phase.duration_s;
    ends_[phase.stage][kind].push_back(now_[group]);
    orders_[group].push_back(phase.phase);
  }

  std::string DescribeHolders() const {
    std::vector<std::string> groups;
    for (int g = 0; g < pipeline_.num_groups; ++g) {
      if (most_held_[g] <= 0) continue;
      groups.push_back(StrCat("group ", g, " keeps ", held_[g], " of ", most_held_[g]));
    }
    return StrCat("all groups wait for memory: ", StrJoin(groups, ", "),
                  "; a micro-batch of stage 0 keeps ", pipeline_.stages[0].activation,
                  " (limits are in the unit of the stages' activations)");
  }

  const Pipeline& pipeline_;
  const PhaseBefore& before_;
  const std::vector<double>& most_held_;
  const size_t num_microbatches_;
  std::array<std::vector<std::vector<Source>>, 2> sources_;  // of F and B, by stage
  // By stage and kind: when the phases so far end.
  std::vector<std::array<std::vector<double>, kNumPolicyKinds>> ends_;
  // By group.
  std::vector<double> now_;
  std::vector<double> held_;
  PipelineOrders orders_;
};

class GreedyPolicy : public Policy {
 public:
  explicit GreedyPolicy(GreedyOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return options_.name; }
  PolicyNeeds needs() const override { return options_.needs; }
  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    std::vector<double> most_held;
    for (int g = 0; g < pipeline.num_groups; ++g) {
      double most = options_.most_held ? options_.most_held(pipeline, g) : 0;
      if (pipeline.memory_limit > 0) {
        most = most > 0 ? std::min(most, pipeline.memory_limit) : pipeline.memory_limit;
      }
      most_held.push_back(most);
    }
    return PlanGreedily(pipeline, options_.before, most_held);
  }

 private:
  const GreedyOptions options_;
};

}  // namespace

absl::StatusOr<PipelineOrders> PlanGreedily(const Pipeline& pipeline, const PhaseBefore& before,
                                            const std::vector<double>& most_held) {
  return GreedyRun(pipeline, before, most_held).Run();
}

std::unique_ptr<const Policy> MakeGreedyPolicy(GreedyOptions options) {
  return std::make_unique<GreedyPolicy>(std::move(options));
}

}  // namespace penstock::planner
