#include "planner/search/schedule_seconds.h"

#include <algorithm>
#include <cstddef>

#include "base/status_macros.h"

namespace penstock::planner {
namespace {

constexpr double kNotYet = -1;

// One edge, seen from the stage that reads.
struct Arrival {
  int from = 0;
  double seconds = 0;
  double link_free_s = 0;
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
  const size_t num_stages = input.forward_s.size();
  const auto num_microbatches = static_cast<size_t>(input.num_microbatches);
  // When each phase ends, by virtual stage and micro-batch.
  std::vector<double> forward_end(num_stages * num_microbatches, kNotYet);
  std::vector<double> backward_end(num_stages * num_microbatches, kNotYet);
  std::vector<std::vector<Arrival>> forward_arrivals(num_stages);
  std::vector<std::vector<Arrival>> backward_arrivals(num_stages);
  for (const ScheduleEdge& edge : input.edges) {
    (edge.is_forward ? forward_arrivals : backward_arrivals)[edge.to].push_back(
        {edge.from, edge.seconds});
  }
  ScheduleOutcome outcome;
  outcome.end_s.assign(orders.size(), 0);
  outcome.in_flight.assign(num_stages, 0);
  std::vector<int> in_flight(num_stages, 0);
  std::vector<size_t> next(orders.size(), 0);

  // When all that a phase reads is there; kNotYet: some of it is not made.
  const auto arrival_of = [&](std::vector<Arrival>& arrivals, const std::vector<double>& ends,
                              size_t microbatch) {
    double ready = 0;
    for (const Arrival& arrival : arrivals) {
      const double end = ends[arrival.from * num_microbatches + microbatch];
      if (end == kNotYet) return kNotYet;
      ready = std::max(ready, std::max(end, arrival.link_free_s) + arrival.seconds);
    }
    for (Arrival& arrival : arrivals) {
      const double end = ends[arrival.from * num_microbatches + microbatch];
      arrival.link_free_s = std::max(end, arrival.link_free_s) + arrival.seconds;
    }
    return ready;
  };

  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (size_t g = 0; g < orders.size(); ++g) {
      for (; next[g] < orders[g].size(); ++next[g]) {
        const PhaseChoice& choice = orders[g][next[g]];
        if (choice.kind == PhaseKind::kWeight) continue;
        const bool is_forward = choice.kind == PhaseKind::kForward;
        const size_t stage = static_cast<size_t>(choice.chunk) * input.num_groups + g;
        const auto microbatch = static_cast<size_t>(choice.microbatch);
        std::vector<double>& ends = is_forward ? forward_end : backward_end;
        double begin = arrival_of((is_forward ? forward_arrivals : backward_arrivals)[stage], ends,
                                  microbatch);
        if (begin == kNotYet) break;
        if (is_forward && !input.ready_s.empty()) begin = std::max(begin, input.ready_s[stage]);
        begin = std::max(begin, outcome.end_s[g]);
        outcome.end_s[g] = begin + (is_forward ? input.forward_s : input.backward_s)[stage];
        ends[stage * num_microbatches + microbatch] = outcome.end_s[g];
        in_flight[stage] += is_forward ? 1 : -1;
        outcome.in_flight[stage] = std::max(outcome.in_flight[stage], in_flight[stage]);
        has_moved = true;
      }
    }
  }
  for (size_t g = 0; g < orders.size(); ++g) {
    if (next[g] < orders[g].size()) return std::nullopt;
  }
  return outcome;
}

}  // namespace penstock::planner
