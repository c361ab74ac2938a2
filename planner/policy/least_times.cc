#include "planner/policy/least_times.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace penstock::planner {
namespace {

constexpr double kUnreachable = std::numeric_limits<double>::infinity();
constexpr auto kForwardTime = static_cast<size_t>(PhaseKind::kForward);
constexpr auto kBackwardTime = static_cast<size_t>(PhaseKind::kBackward);
constexpr auto kWeightTime = static_cast<size_t>(PhaseKind::kWeight);

double SecondsOf(const VirtualStage& stage, size_t kind) {
  return stage.kinds[kind] ? stage.seconds[kind] : 0;
}

double ArrivalOf(const Pipeline& pipeline, const PipelineEdge& edge) {
  const bool is_local = pipeline.stages[edge.from].group == pipeline.stages[edge.to].group;
  return is_local ? 0 : edge.latency_s + edge.transfer_s;
}

// When the first F of each stage can begin.
std::vector<double> FirstBegins(const Pipeline& pipeline,
                                const std::vector<std::vector<const PipelineEdge*>>& edges_to) {
  std::vector<double> begins;
  for (size_t v = 0; v < pipeline.stages.size(); ++v) {
    double begin = pipeline.stages[v].ready_s;
    for (const PipelineEdge* edge : edges_to[v]) {
      const VirtualStage& from = pipeline.stages[edge->from];
      begin = std::max(
          begin, begins[edge->from] + SecondsOf(from, kForwardTime) + ArrivalOf(pipeline, *edge));
    }
    begins.push_back(begin);
  }
  return begins;
}

}  // namespace

LeastTimes LeastTimesOf(const Pipeline& pipeline) {
  const size_t num_stages = pipeline.stages.size();
  std::vector<std::vector<const PipelineEdge*>> forward_to(num_stages);
  std::vector<std::vector<const PipelineEdge*>> backward_from(num_stages);
  for (const PipelineEdge& edge : pipeline.edges) {
    if (!pipeline.stages[edge.from].kinds[edge.is_forward ? kForwardTime : kBackwardTime]) continue;
    (edge.is_forward ? forward_to[edge.to] : backward_from[edge.from]).push_back(&edge);
  }
  const std::vector<double> begins = FirstBegins(pipeline, forward_to);
  // What must follow a B of a stage before the step ends.
  std::vector<double> after_b;
  for (size_t v = 0; v < num_stages; ++v) {
    const VirtualStage& stage = pipeline.stages[v];
    double after = SecondsOf(stage, kWeightTime);
    for (const PipelineEdge* edge : backward_from[v]) {
      after = std::max(after, ArrivalOf(pipeline, *edge) +
                                  SecondsOf(pipeline.stages[edge->to], kBackwardTime) +
                                  after_b[edge->to]);
    }
    after_b.push_back(after);
  }

  struct Group {
    double begin_s = kUnreachable;
    double seconds = 0;         // of all its phases
    double until_last_b_s = 0;  // of those that are over with its last B
    double after_last_b_s = kUnreachable;
    bool has_backward = false;
  };
  std::vector<Group> groups(static_cast<size_t>(pipeline.num_groups));
  for (size_t v = 0; v < num_stages; ++v) {
    const VirtualStage& stage = pipeline.stages[v];
    Group& group = groups[static_cast<size_t>(stage.group)];
    const double until_b = SecondsOf(stage, kForwardTime) + SecondsOf(stage, kBackwardTime);
    group.begin_s = std::min(group.begin_s, begins[v]);
    group.seconds += pipeline.num_microbatches * (until_b + SecondsOf(stage, kWeightTime));
    group.until_last_b_s += pipeline.num_microbatches * until_b;
    if (!stage.kinds[kBackwardTime]) continue;
    group.has_backward = true;
    group.after_last_b_s = std::min(group.after_last_b_s, after_b[v]);
  }
  LeastTimes least;
  for (const Group& group : groups) {
    const double begin = group.begin_s == kUnreachable ? 0 : group.begin_s;
    least.end_s.push_back(begin + group.seconds);
    least.makespan_s = std::max(least.makespan_s, least.end_s.back());
    if (!group.has_backward) continue;
    least.makespan_s =
        std::max(least.makespan_s, begin + group.until_last_b_s + group.after_last_b_s);
  }
  return least;
}

}  // namespace penstock::planner
