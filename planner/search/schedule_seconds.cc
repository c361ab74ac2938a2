#include "planner/search/schedule_seconds.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/status_macros.h"

namespace penstock::planner {
namespace {

constexpr double kNotYet = -1;
constexpr double kLeastSeconds = 1e-12;  // less is rounding

// One edge, seen from the stage that reads.
struct Arrival {
  int from = 0;
  double seconds = 0;
  double link_free_s = 0;
};

using Orders = std::vector<std::vector<PhaseChoice>>;

class ScheduleRun {
 public:
  ScheduleRun(const ScheduleInput& input, const Orders& orders)
      : input_(input),
        orders_(orders),
        num_microbatches_(static_cast<size_t>(input.num_microbatches)),
        next_(orders.size(), 0) {
    const size_t num_stages = input.forward_s.size();
    ends_[0].assign(num_stages * num_microbatches_, kNotYet);
    ends_[1] = ends_[0];
    arrivals_[0].resize(num_stages);
    arrivals_[1].resize(num_stages);
    for (const ScheduleEdge& edge : input.edges) {
      arrivals_[edge.is_forward ? 0 : 1][edge.to].push_back({edge.from, edge.seconds});
    }
    outcome_.end_s.assign(orders.size(), 0);
    outcome_.in_flight.assign(num_stages, 0);
    in_flight_.assign(num_stages, 0);
  }

  void RunWithOwnCores() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (size_t g = 0; g < orders_.size(); ++g) {
        while (SkipToPhase(g)) {
          const double begin = Begin(g);
          if (begin == kNotYet) break;
          End(g, begin + Seconds(g));
          has_moved = true;
        }
      }
    }
  }

  // From event to event: a phase ends, or what the next one reads has arrived.
  void RunOnSharedCores() {
    std::vector<double> begin(orders_.size(), kNotYet);  // of the next phase
    std::vector<double> left(orders_.size(), 0);         // seconds of it, at full speed
    double now = 0;
    while (true) {
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (begin[g] != kNotYet || !SkipToPhase(g)) continue;
        begin[g] = Begin(g);
        if (begin[g] != kNotYet) left[g] = Seconds(g);
      }
      const std::vector<double> speeds = Speeds(begin, now);
      double step = kNotYet;
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (begin[g] == kNotYet) continue;
        const double until = begin[g] <= now ? left[g] / speeds[g] : begin[g] - now;
        step = step == kNotYet ? until : std::min(step, until);
      }
      if (step == kNotYet) return;
      const double before = now;
      now += step;
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (begin[g] == kNotYet || begin[g] > before) continue;
        left[g] -= speeds[g] * step;
        if (left[g] > kLeastSeconds) continue;
        begin[g] = kNotYet;
        End(g, now);
      }
    }
  }

  std::optional<ScheduleOutcome> Outcome() {
    for (size_t g = 0; g < orders_.size(); ++g) {
      if (next_[g] < orders_[g].size()) return std::nullopt;
    }
    return std::move(outcome_);
  }

 private:
  const PhaseChoice& Next(size_t group) const { return orders_[group][next_[group]]; }
  static size_t KindOf(const PhaseChoice& choice) {
    return choice.kind == PhaseKind::kForward ? 0 : 1;
  }
  size_t StageOf(size_t group, const PhaseChoice& choice) const {
    return static_cast<size_t>(choice.chunk) * input_.num_groups + group;
  }
  double Seconds(size_t group) const {
    const PhaseChoice& choice = Next(group);
    return (KindOf(choice) == 0 ? input_.forward_s : input_.backward_s)[StageOf(group, choice)];
  }

  // Whether the group has a phase to come. Gradients of weights are part of backward phases.
  bool SkipToPhase(size_t group) {
    const std::vector<PhaseChoice>& order = orders_[group];
    size_t& next = next_[group];
    while (next < order.size() && order[next].kind == PhaseKind::kWeight) ++next;
    return next < order.size();
  }

  // When the next phase of the group can begin; kNotYet: some of what it reads is not made. Asked
  // once for each phase that can.
  double Begin(size_t group) {
    const PhaseChoice& choice = Next(group);
    const size_t kind = KindOf(choice);
    const size_t stage = StageOf(group, choice);
    const auto microbatch = static_cast<size_t>(choice.microbatch);
    std::vector<Arrival>& arrivals = arrivals_[kind][stage];
    double begin = outcome_.end_s[group];
    if (kind == 0 && !input_.ready_s.empty()) begin = std::max(begin, input_.ready_s[stage]);
    const auto made_at = [&](const Arrival& arrival) {
      return ends_[kind][arrival.from * num_microbatches_ + microbatch];
    };
    for (const Arrival& arrival : arrivals) {
      if (made_at(arrival) == kNotYet) return kNotYet;
    }
    for (Arrival& arrival : arrivals) {
      arrival.link_free_s = std::max(made_at(arrival), arrival.link_free_s) + arrival.seconds;
      begin = std::max(begin, arrival.link_free_s);
    }
    return begin;
  }

  void End(size_t group, double now) {
    const PhaseChoice& choice = Next(group);
    const size_t stage = StageOf(group, choice);
    ends_[KindOf(choice)][stage * num_microbatches_ + choice.microbatch] = now;
    in_flight_[stage] += KindOf(choice) == 0 ? 1 : -1;
    outcome_.in_flight[stage] = std::max(outcome_.in_flight[stage], in_flight_[stage]);
    outcome_.end_s[group] = now;
    ++next_[group];
  }

  // Of the groups that run phases. All devices of a group wait for the slowest.
  std::vector<double> Speeds(const std::vector<double>& begin, double now) const {
    std::vector<double> speeds(orders_.size(), 1);
    for (const SharedCores& cores : input_.cores) {
      double active = 0;
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (begin[g] != kNotYet && begin[g] <= now) active += cores.devices_of_group[g];
      }
      if (active <= cores.at_once) continue;
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (cores.devices_of_group[g] > 0) speeds[g] = std::min(speeds[g], cores.at_once / active);
      }
    }
    return speeds;
  }

  const ScheduleInput& input_;
  const Orders& orders_;
  const size_t num_microbatches_;
  // Of forward and backward phases: when each ends, by virtual stage and micro-batch, and the edges
  // that it reads from.
  std::array<std::vector<double>, 2> ends_;
  std::array<std::vector<std::vector<Arrival>>, 2> arrivals_;
  std::vector<size_t> next_;  // of each group's order
  std::vector<int> in_flight_;
  ScheduleOutcome outcome_;
};

}  // namespace

absl::StatusOr<std::vector<std::vector<PhaseChoice>>> OrdersOf(const Policy& policy, int num_groups,
                                                               int num_chunks, int num_microbatches,
                                                               bool has_backward) {
  StageContext context;
  context.num_stages = num_groups;
  context.num_microbatches = num_microbatches;
  context.chunks.assign(num_chunks, PhaseKinds{true, has_backward, false});
  std::vector<std::vector<PhaseChoice>> orders;
  for (int group = 0; group < num_groups; ++group) {
    context.stage = group;
    ASSIGN_OR_RETURN(StageSchedule schedule, MakeSchedule(policy, context));
    if (schedule.order.empty()) {
      const PolicyRegistry builtin = BuiltinPolicies();
      ASSIGN_OR_RETURN(schedule, MakeSchedule(*builtin.Find("1f1b"), context));
    }
    orders.push_back(std::move(schedule.order));
  }
  return orders;
}

std::optional<ScheduleOutcome> RunSchedule(const ScheduleInput& input,
                                           const std::vector<std::vector<PhaseChoice>>& orders) {
  ScheduleRun run(input, orders);
  if (input.cores.empty()) {
    run.RunWithOwnCores();
  } else {
    run.RunOnSharedCores();
  }
  return run.Outcome();
}

}  // namespace penstock::planner
