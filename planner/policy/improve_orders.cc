#include "planner/policy/improve_orders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace penstock::planner {
namespace {

constexpr double kUnknownTime = -1;
constexpr double kDeadlock = std::numeric_limits<double>::infinity();
constexpr double kOtherWeight = 1e-3;
constexpr uint64_t kSeed = 20240101;
constexpr int kFarthestMove = 8;           // places
constexpr double kFirstTemperature = 0.3;  // in mean durations of a phase
constexpr double kLastTemperature = 0.003;
constexpr double kTolerance = 1e-9;

double Cost(const Pipeline& pipeline, double span_s, double makespan_s) {
  return pipeline.overlaps_steps ? span_s + kOtherWeight * makespan_s
                                 : makespan_s + kOtherWeight * span_s;
}

// A pipeline with numbered phases, and orders of such numbers: fast to run again and again.
class OrderSearch {
 public:
  OrderSearch(const Pipeline& pipeline, const PipelineOrders& orders)
      : pipeline_(pipeline), num_microbatches_(pipeline.num_microbatches), orders_(orders.size()) {
    const size_t num_rows = pipeline.stages.size() * kNumPolicyKinds;
    sources_.resize(num_rows);
    ends_.resize(num_rows * num_microbatches_);
    for (size_t v = 0; v < pipeline.stages.size(); ++v) {
      const VirtualStage& stage = pipeline.stages[v];
      for (int k = 1; k < kNumPolicyKinds; ++k) {
        const int before = stage.kind_before(k);
        if (stage.kinds[k] && before >= 0) sources_[RowOf(v, k)].push_back({RowOf(v, before), 0});
      }
    }
    for (const PipelineEdge& edge : pipeline.edges) {
      const int kind = edge.is_forward ? 0 : 1;
      if (!pipeline.stages[edge.from].kinds[kind]) continue;
      sources_[RowOf(edge.to, kind)].push_back(
          {RowOf(edge.from, kind), pipeline.LatencyS(edge.from, edge.to)});
    }
    double seconds = 0;
    for (size_t g = 0; g < orders.size(); ++g) {
      double busy = 0;
      for (const PhaseChoice& phase : orders[g]) {
        const int stage = pipeline.StageOf(static_cast<int>(g), phase.chunk);
        const size_t row = RowOf(stage, static_cast<int>(phase.kind));
        orders_[g].push_back({row * num_microbatches_ + phase.microbatch});
        busy += SecondsOf(orders_[g].back());
      }
      num_phases_ += static_cast<int64_t>(orders[g].size());
      seconds += busy;
      busiest_ = std::max(busiest_, busy);
    }
    mean_seconds_ = num_phases_ > 0 ? seconds / static_cast<double>(num_phases_) : 0;
  }

  void Run(int64_t num_firings) {
    double cost = Evaluate();
    std::vector<std::vector<Phase>> best = orders_;
    double best_cost = cost;
    std::vector<size_t> choosable;
    for (size_t g = 0; g < orders_.size(); ++g) {
      if (orders_[g].size() > 1) choosable.push_back(g);
    }
    if (choosable.empty()) return;
    const int64_t num_moves = num_firings / num_phases_;
    for (int64_t i = 0; i < num_moves && best_cost > LeastCost(); ++i) {
      const double progress = static_cast<double>(i) / static_cast<double>(num_moves);
      const double temperature = mean_seconds_ * kFirstTemperature *
                                 std::pow(kLastTemperature / kFirstTemperature, progress);
      const size_t g = choosable[Below(choosable.size())];
      const size_t from = Below(orders_[g].size());
      const auto distance = static_cast<int64_t>(Below(2 * kFarthestMove + 1)) - kFarthestMove;
      const size_t to = Move(g, from, distance);
      if (to == from) continue;
      const double new_cost = FitsMemory(g) ? Evaluate() : kDeadlock;
      const bool is_kept = new_cost <= cost ||
                           Uniform() < std::exp((cost - new_cost) / std::max(temperature, 1e-300));
      if (!is_kept || new_cost == kDeadlock) {
        MoveTo(g, to, from);
        continue;
      }
      cost = new_cost;
      if (cost >= best_cost - kTolerance * mean_seconds_) continue;
      best_cost = cost;
      best = orders_;
    }
    orders_ = std::move(best);
  }

  PipelineOrders Orders() const {
    PipelineOrders orders(orders_.size());
    for (size_t g = 0; g < orders_.size(); ++g) {
      for (const Phase& phase : orders_[g]) {
        orders[g].push_back({static_cast<PhaseKind>(KindOf(phase)),
                             static_cast<int>(phase.id % num_microbatches_),
                             pipeline_.stages[StageOf(phase)].chunk});
      }
    }
    return orders;
  }

 private:
  struct Phase {
    size_t id = 0;  // row * num_microbatches + micro-batch
  };
  struct Source {
    size_t row = 0;
    double latency_s = 0;
  };

  static size_t RowOf(size_t stage, int kind) { return stage * kNumPolicyKinds + kind; }
  size_t StageOf(const Phase& phase) const {
    return phase.id / num_microbatches_ / kNumPolicyKinds;
  }
  size_t KindOf(const Phase& phase) const { return phase.id / num_microbatches_ % kNumPolicyKinds; }
  double SecondsOf(const Phase& phase) const {
    return pipeline_.stages[StageOf(phase)].seconds[KindOf(phase)];
  }
  double LeastCost() const { return Cost(pipeline_, busiest_, busiest_) * (1 + kTolerance); }

  size_t Below(size_t bound) { return random_() % bound; }
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  // Whether a phase may pass another one of its group.
  bool MaySwap(const Phase& a, const Phase& b) const {
    if (a.id / num_microbatches_ == b.id / num_microbatches_) return false;
    return StageOf(a) != StageOf(b) || a.id % num_microbatches_ != b.id % num_microbatches_;
  }

  // Moves a phase as far as it may go; returns where it is then.
  size_t Move(size_t g, size_t from, int64_t distance) {
    std::vector<Phase>& order = orders_[g];
    size_t at = from;
    for (; distance > 0 && at + 1 < order.size() && MaySwap(order[at], order[at + 1]); --distance) {
      std::swap(order[at], order[at + 1]);
      ++at;
    }
    for (; distance < 0 && at > 0 && MaySwap(order[at - 1], order[at]); ++distance) {
      std::swap(order[at - 1], order[at]);
      --at;
    }
    return at;
  }
  void MoveTo(size_t g, size_t from, size_t to) {
    const auto begin = orders_[g].begin();
    if (from < to) {
      std::rotate(begin + from, begin + from + 1, begin + to + 1);
    } else {
      std::rotate(begin + to, begin + from, begin + from + 1);
    }
  }

  bool FitsMemory(size_t g) const {
    if (pipeline_.memory_limit <= 0) return true;
    double held = 0;
    for (const Phase& phase : orders_[g]) {
      const VirtualStage& stage = pipeline_.stages[StageOf(phase)];
      const size_t kind = KindOf(phase);
      const auto last = static_cast<size_t>(stage.last_kind());
      if (kind == 0) held += stage.activation;
      if (held > pipeline_.memory_limit * (1 + kTolerance)) return false;
      if (kind == last) held -= stage.activation;
    }
    return true;
  }

  double Evaluate() {
    std::fill(ends_.begin(), ends_.end(), kUnknownTime);
    const size_t num_groups = orders_.size();
    next_.assign(num_groups, 0);
    now_.assign(num_groups, 0);
    double span = 0;
    double makespan = 0;
    size_t num_done = 0;
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (size_t g = 0; g < num_groups; ++g) {
        const std::vector<Phase>& order = orders_[g];
        for (; next_[g] < order.size(); ++next_[g]) {
          const double begin = BeginOf(order[next_[g]], now_[g]);
          if (begin == kUnknownTime) break;
          if (next_[g] == 0) begin_[g] = begin;
          now_[g] = begin + SecondsOf(order[next_[g]]);
          ends_[order[next_[g]].id] = now_[g];
          has_moved = true;
          if (next_[g] + 1 < order.size()) continue;
          ++num_done;
          span = std::max(span, now_[g] - begin_[g]);
          makespan = std::max(makespan, now_[g]);
        }
      }
    }
    const auto num_empty = std::count_if(orders_.begin(), orders_.end(),
                                         [](const std::vector<Phase>& o) { return o.empty(); });
    return num_done + num_empty == num_groups ? Cost(pipeline_, span, makespan) : kDeadlock;
  }

  double BeginOf(const Phase& phase, double now) const {
    const size_t row = phase.id / num_microbatches_;
    const size_t microbatch = phase.id % num_microbatches_;
    double begin = now;
    if (row % kNumPolicyKinds == 0) {
      begin = std::max(begin, pipeline_.stages[row / kNumPolicyKinds].ready_s);
    }
    for (const Source& source : sources_[row]) {
      const double end = ends_[source.row * num_microbatches_ + microbatch];
      if (end == kUnknownTime) return kUnknownTime;
      begin = std::max(begin, end + source.latency_s);
    }
    return begin;
  }

  const Pipeline& pipeline_;
  const size_t num_microbatches_;
  std::vector<std::vector<Phase>> orders_;
  std::vector<std::vector<Source>> sources_;  // of each row: stage and kind
  int64_t num_phases_ = 0;
  double busiest_ = 0;  // seconds that the busiest group computes
  double mean_seconds_ = 0;
  std::mt19937_64 random_{kSeed};
  // Of the run in progress: of each phase, when it ends; of each group.
  std::vector<double> ends_;
  std::vector<size_t> next_;
  std::vector<double> now_;
  std::vector<double> begin_ = std::vector<double>(orders_.size(), 0);
};

bool KeepsLimit(const Pipeline& pipeline, const Timeline& timeline) {
  return pipeline.memory_limit <= 0 ||
         *std::max_element(timeline.peak_activations.begin(), timeline.peak_activations.end()) <=
             pipeline.memory_limit * (1 + kTolerance);
}

}  // namespace

double CostOf(const Pipeline& pipeline, const Timeline& timeline) {
  return Cost(pipeline, timeline.span_s, timeline.makespan_s);
}

PipelineOrders ImproveOrders(const Pipeline& pipeline, const PipelineOrders& orders,
                             int64_t num_firings) {
  OrderSearch search(pipeline, orders);
  search.Run(num_firings);
  PipelineOrders improved = search.Orders();
  // The search takes transfers of an edge for independent, and cores for plenty.
  const absl::StatusOr<Timeline> before = RunPipeline(pipeline, orders);
  const absl::StatusOr<Timeline> after = RunPipeline(pipeline, improved);
  const bool is_better =
      before.ok() && after.ok() && CostOf(pipeline, *after) < CostOf(pipeline, *before);
  return is_better && KeepsLimit(pipeline, *after) ? improved : orders;
}

}  // namespace penstock::planner
