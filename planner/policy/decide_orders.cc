#include "planner/policy/decide_orders.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/policy/ask_policy_internal.h"

namespace penstock::planner {
namespace {

// A group while it runs.
struct RunningGroup {
  StageContext context;
  std::unique_ptr<StageScheduler> scheduler;  // null: it has no phases to order
  StageView view;
  std::vector<int> activation_credits;  // by chunk
  std::vector<PhaseChoice> order;
  std::optional<PhaseChoice> chosen;  // and not yet begun
  bool is_busy = false;
};

// A phase that ends, or a value that arrives.
struct Event {
  double at_s = 0;
  int group = -1;  // of the phase that ends; -1: a value arrives
  PhaseChoice phase = {};
};
struct IsLater {
  bool operator()(const Event& a, const Event& b) const { return a.at_s > b.at_s; }
};

class Decisions {
 public:
  Decisions(const Policy& policy, const Pipeline& pipeline)
      : policy_(policy),
        pipeline_(pipeline),
        edges_to_(pipeline.stages.size()),
        edges_from_(pipeline.stages.size()),
        ends_s_(pipeline.stages.size()) {
    for (const PipelineEdge& edge : pipeline.edges) {
      edges_to_[edge.to].push_back(&edge);
      edges_from_[edge.from].push_back(&edge);
    }
    for (const VirtualStage& stage : pipeline.stages) {
      if (stage.ready_s > 0) events_.push({stage.ready_s});
    }
  }

  absl::StatusOr<PipelineOrders> Run(PipelineOrders given) {
    RETURN_IF_ERROR(Start(std::move(given)));
    while (true) {
      bool has_changed = true;
      while (has_changed) {
        has_changed = false;
        for (int g = 0; g < pipeline_.num_groups; ++g) {
          ASSIGN_OR_RETURN(const bool has_begun, Advance(g));
          has_changed = has_changed || has_begun;
        }
      }
      if (events_.empty()) break;
      now_s_ = events_.top().at_s;
      while (!events_.empty() && events_.top().at_s <= now_s_) {
        if (events_.top().group >= 0) End(events_.top());
        events_.pop();
      }
    }
    PipelineOrders orders;
    RETURN_IF_ERROR(CheckDone());
    for (RunningGroup& group : groups_) orders.push_back(std::move(group.order));
    return orders;
  }

 private:
  absl::Status Start(PipelineOrders given) {
    for (int g = 0; g < pipeline_.num_groups; ++g) {
      RunningGroup group;
      group.context = pipeline_.ContextOf(g);
      group.view.chunks.resize(group.context.chunks.size());
      if (group.context.has_choices() && !given[g].empty()) {
        group.scheduler = FollowOrder(std::move(given[g]));
        group.activation_credits.assign(group.context.chunks.size(), pipeline_.num_microbatches);
      } else if (group.context.has_choices()) {
        ASSIGN_OR_RETURN(StageSchedule schedule, MakeSchedule(policy_, group.context));
        group.scheduler = std::move(schedule.scheduler);
        ASSIGN_OR_RETURN(const int credits, ActivationCreditsOf(policy_, group.context));
        group.activation_credits.assign(group.context.chunks.size(), credits);
      }
      groups_.push_back(std::move(group));
    }
    return absl::OkStatus();
  }

  bool IsDone(const RunningGroup& group) const {
    for (int chunk = 0; chunk < group.context.num_chunks(); ++chunk) {
      for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
        if (group.context.chunks[chunk][kind] &&
            group.view.chunks[chunk].completed[kind] < pipeline_.num_microbatches) {
          return false;
        }
      }
    }
    return true;
  }

  // Whether a phase has begun, or has been chosen.
  absl::StatusOr<bool> Advance(int g) {
    RunningGroup& group = groups_[g];
    if (group.scheduler == nullptr || group.is_busy || IsDone(group)) return false;
    bool has_chosen = false;
    if (!group.chosen.has_value()) {
      LookAround(g);
      std::optional<PhaseChoice> choice;
      RETURN_IF_ERROR(internal::AskPolicy(policy_, StrCat(" at stage ", g),
                                          [&] { choice = group.scheduler->Next(group.view); }));
      if (!choice.has_value()) return false;
      RETURN_IF_ERROR(Accept(g, *choice));
      has_chosen = true;
    }
    if (!CanBegin(g, *group.chosen)) return has_chosen;
    const PhaseChoice phase = *std::exchange(group.chosen, std::nullopt);
    group.is_busy = true;
    group.order.push_back(phase);
    events_.push({now_s_ + pipeline_.SecondsOf(g, phase), g, phase});
    return true;
  }

  absl::Status Accept(int g, const PhaseChoice& choice) {
    RunningGroup& group = groups_[g];
    if (!group.context.has(choice.kind, choice.chunk) ||
        choice.microbatch >= pipeline_.num_microbatches ||
        choice.microbatch != IssuedOf(&group, choice)) {
      return absl::InvalidArgumentError(
          StrCat("policy '", policy_.name(), "' chose ", ToString(choice), " on stage ", g,
                 ", which is not the next of a chunk and kind that it has"));
    }
    ++IssuedOf(&group, choice);
    group.chosen = choice;
    return absl::OkStatus();
  }

  static int& IssuedOf(RunningGroup* group, const PhaseChoice& phase) {
    return group->view.chunks[phase.chunk].issued[static_cast<size_t>(phase.kind)];
  }

  void LookAround(int g) {
    RunningGroup& group = groups_[g];
    for (int chunk = 0; chunk < group.context.num_chunks(); ++chunk) {
      ChunkView& view = group.view.chunks[chunk];
      for (int k = 0; k < kNumPolicyKinds; ++k) {
        if (!group.context.chunks[chunk][k]) continue;
        const auto kind = static_cast<PhaseKind>(k);
        int ready = 0;
        while (view.issued[k] + ready < pipeline_.num_microbatches &&
               CanBegin(g, {kind, view.issued[k] + ready, chunk})) {
          ++ready;
        }
        view.ready[k] = ready;
        const double seconds = pipeline_.SecondsOf(g, {kind, 0, chunk});
        view.mean_ns[k] = view.completed[k] > 0 ? static_cast<int64_t>(1e9 * seconds) : 0;
      }
    }
  }

  // Whether all that the phase reads is there, and a credit, by now.
  bool CanBegin(int g, const PhaseChoice& phase) const {
    const RunningGroup& group = groups_[g];
    const int v = pipeline_.StageOf(g, phase.chunk);
    const VirtualStage& stage = pipeline_.stages[v];
    const auto kind = static_cast<size_t>(phase.kind);
    const int before = stage.kind_before(kind);
    if (before < 0) {
      const int last = static_cast<int>(stage.last_kind());
      const int completed = group.view.chunks[phase.chunk].completed[last];
      if (last != static_cast<int>(kind) &&
          phase.microbatch >= completed + group.activation_credits[phase.chunk]) {
        return false;
      }
      if (stage.ready_s > now_s_) return false;
    } else if (!HasEnded(v, before, phase.microbatch, 0)) {
      return false;
    }
    if (phase.kind == PhaseKind::kWeight) return true;
    for (const PipelineEdge* edge : edges_to_[v]) {
      if (edge->is_forward != (phase.kind == PhaseKind::kForward) ||
          !pipeline_.stages[edge->from].kinds[kind]) {
        continue;
      }
      if (!HasEnded(edge->from, static_cast<int>(kind), phase.microbatch, DelayOf(*edge))) {
        return false;
      }
    }
    return true;
  }

  double DelayOf(const PipelineEdge& edge) const {
    const bool is_within = pipeline_.stages[edge.from].group == pipeline_.stages[edge.to].group;
    return is_within ? 0 : edge.latency_s + edge.transfer_s;
  }

  bool HasEnded(int v, int kind, int microbatch, double delay_s) const {
    const std::vector<double>& ends_s = ends_s_[v][kind];
    return microbatch < static_cast<int>(ends_s.size()) && ends_s[microbatch] + delay_s <= now_s_;
  }

  void End(const Event& event) {
    RunningGroup& group = groups_[event.group];
    const int v = pipeline_.StageOf(event.group, event.phase.chunk);
    const auto kind = static_cast<size_t>(event.phase.kind);
    group.is_busy = false;
    ++group.view.chunks[event.phase.chunk].completed[kind];
    ends_s_[v][kind].push_back(event.at_s);
    for (const PipelineEdge* edge : edges_from_[v]) {
      if (DelayOf(*edge) > 0) events_.push({event.at_s + DelayOf(*edge)});
    }
  }

  // A group that chooses nothing though it could begin something holds up those that wait.
  absl::Status CheckDone() {
    std::optional<int> waiting;
    for (int g = 0; g < pipeline_.num_groups; ++g) {
      const RunningGroup& group = groups_[g];
      if (group.scheduler == nullptr || IsDone(group)) continue;
      if (group.chosen.has_value()) {
        waiting = waiting.value_or(g);
        continue;
      }
      LookAround(g);
      for (const ChunkView& chunk : group.view.chunks) {
        if (std::all_of(chunk.ready.begin(), chunk.ready.end(), [](int n) { return n == 0; })) {
          continue;
        }
        return absl::InvalidArgumentError(
            StrCat("policy '", policy_.name(), "' chooses nothing on stage ", g,
                   " though a phase could run, and nothing is under way"));
      }
      waiting = waiting.value_or(g);
    }
    if (!waiting.has_value()) return absl::OkStatus();
    const RunningGroup& group = groups_[*waiting];
    return absl::FailedPreconditionError(StrCat(
        "policy '", policy_.name(), "': stage ", *waiting, " waits for ever",
        group.chosen.has_value() ? StrCat(" for what ", ToString(*group.chosen), " reads") : ""));
  }

  const Policy& policy_;
  const Pipeline& pipeline_;
  std::vector<RunningGroup> groups_;
  // By virtual stage; ends of phases by kind and micro-batch.
  std::vector<std::vector<const PipelineEdge*>> edges_to_;
  std::vector<std::vector<const PipelineEdge*>> edges_from_;
  std::vector<std::array<std::vector<double>, kNumPolicyKinds>> ends_s_;
  std::priority_queue<Event, std::vector<Event>, IsLater> events_;
  double now_s_ = 0;
};

}  // namespace

absl::StatusOr<PipelineOrders> DecideOrders(const Policy& policy, const Pipeline& pipeline,
                                            PipelineOrders orders) {
  return Decisions(policy, pipeline).Run(std::move(orders));
}

}  // namespace penstock::planner
