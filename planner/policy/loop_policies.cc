// Policies whose orders follow from counts alone: gpipe, 1f1b and its relatives.

#include <algorithm>
#include <optional>
#include <string_view>

#include "planner/policy/policies_internal.h"

namespace penstock::planner::internal {
namespace {

// Micro-batches pass through the chunks in rounds of about as many as there are stages, and no
// fewer where there are enough, so that the first of a round is back from the last stage when the
// round has left the first. The number of rounds; with one chunk, one.
int NumRounds(const StageContext& context) {
  if (context.num_chunks() == 1) return 1;
  return std::max(context.num_microbatches / context.num_stages, 1);
}

// The phases of a kind, of all chunks. Backwards go through the chunks from the last to the first.
// 2 stages, 2 chunks, 4 micro-batches: F0 F1, F0 F1 of chunk 1, F2 F3, F2 F3 of chunk 1.
std::vector<PhaseChoice> InRounds(const StageContext& context, PhaseKind kind) {
  std::vector<PhaseChoice> order;
  const int num_rounds = NumRounds(context);
  for (int round = 0; round < num_rounds; ++round) {
    const int begin = round * context.num_microbatches / num_rounds;
    const int end = (round + 1) * context.num_microbatches / num_rounds;
    for (int i = 0; i < context.num_chunks(); ++i) {
      const int chunk = kind == PhaseKind::kForward ? i : context.num_chunks() - 1 - i;
      for (int m = begin; m < end; ++m) order.push_back({kind, m, chunk});
    }
  }
  return order;
}

// Forwards run `lead` phases ahead of the backwards; a weight gradient follows its backward. What a
// chunk does not have is left out.
// One chunk, lead = 2, M = 3: F0 F1 B0 F2 B1 B2.
std::vector<PhaseChoice> OrderWithLead(const StageContext& context, int lead) {
  const std::vector<PhaseChoice> forwards = InRounds(context, PhaseKind::kForward);
  const std::vector<PhaseChoice> backwards = InRounds(context, PhaseKind::kBackward);
  const auto count = static_cast<int>(forwards.size());
  std::vector<PhaseChoice> order;
  const auto add = [&](PhaseChoice choice) {
    if (context.has(choice.kind, choice.chunk)) order.push_back(choice);
  };
  for (int i = 0; i < count + lead - 1; ++i) {
    if (i < count) add(forwards[i]);
    if (i < lead - 1) continue;
    PhaseChoice choice = backwards[i - lead + 1];
    add(choice);
    choice.kind = PhaseKind::kWeight;
    add(choice);
  }
  return order;
}

// The warm-up of 1F1B: until the first micro-batch is back. With several chunks, that is when the
// first round has passed all chunks but the last, and its first micro-batch has gone there and come
// back.
int OneForwardOneBackwardLead(const StageContext& context) {
  const int after = context.num_stages - context.stage - 1;  // stages behind this one
  const int chunks = context.num_chunks();
  if (chunks == 1) return after + 1;
  const int num_rounds = NumRounds(context);
  const int largest_round = (context.num_microbatches + num_rounds - 1) / num_rounds;
  return (chunks - 1) * largest_round + 2 * after + 1;
}

std::vector<PhaseChoice> OrderWithClampedLead(const StageContext& context, int lead) {
  const int most = std::max(context.num_microbatches * context.num_chunks(), 1);
  return OrderWithLead(context, std::clamp(lead, 1, most));
}

// All forwards, then all backwards: Huang et al., "GPipe" (2019).
class GPipe : public Policy {
 public:
  std::string_view name() const override { return "gpipe"; }
  PolicyNeeds needs() const override { return {.placement = std::nullopt}; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    return OrderWithClampedLead(context, context.num_microbatches * context.num_chunks());
  }
};

// At most (stages - stage) micro-batches in flight: Narayanan et al., "Memory-Efficient
// Pipeline-Parallel DNN Training" (2021), PipeDream-Flush. With several chunks a group it is
// interleaved, which shortens the bubble: Narayanan et al., "Efficient Large-Scale Language Model
// Training on GPU Clusters" (2021).
class OneForwardOneBackward : public Policy {
 public:
  explicit OneForwardOneBackward(std::string_view name, int min_chunks)
      : name_(name), min_chunks_(min_chunks) {}
  std::string_view name() const override { return name_; }
  PolicyNeeds needs() const override { return {.min_chunks = min_chunks_}; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    return OrderWithClampedLead(context, OneForwardOneBackwardLead(context));
  }

 private:
  const std::string_view name_;
  const int min_chunks_;
};

// 1F1B with up to twice as many micro-batches in flight, so that a transfer has the time of a phase
// to arrive: Zhuang et al., "On Optimizing the Communication of Model Parallelism" (2023).
class EagerOneForwardOneBackward : public Policy {
 public:
  std::string_view name() const override { return "eager-1f1b"; }
  PolicyNeeds needs() const override { return {.max_chunks = 1}; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    return OrderWithClampedLead(context, 2 * (context.num_stages - context.stage) - 1);
  }
};

// All micro-batches pass a chunk before any passes the next one: Lamy-Poirier, "Breadth-First
// Pipeline Parallelism" (2023). Weights that are gathered for a chunk serve all micro-batches.
class LoopedBreadthFirst : public Policy {
 public:
  std::string_view name() const override { return "looped-bfs"; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    std::vector<PhaseChoice> order;
    for (int c = 0; c < context.num_chunks(); ++c) {
      for (int m = 0; m < context.num_microbatches; ++m) {
        if (context.has(PhaseKind::kForward, c)) order.push_back({PhaseKind::kForward, m, c});
      }
    }
    for (int c = context.num_chunks() - 1; c >= 0; --c) {
      for (int m = 0; m < context.num_microbatches; ++m) {
        for (const PhaseKind kind : {PhaseKind::kBackward, PhaseKind::kWeight}) {
          if (context.has(kind, c)) order.push_back({kind, m, c});
        }
      }
    }
    return order;
  }
};

}  // namespace

std::unique_ptr<const Policy> MakeGPipe() { return std::make_unique<GPipe>(); }
std::unique_ptr<const Policy> MakeOneForwardOneBackward() {
  return std::make_unique<OneForwardOneBackward>("1f1b", 1);
}
std::unique_ptr<const Policy> MakeInterleaved() {
  return std::make_unique<OneForwardOneBackward>("interleaved", 2);
}
std::unique_ptr<const Policy> MakeEagerOneForwardOneBackward() {
  return std::make_unique<EagerOneForwardOneBackward>();
}
std::unique_ptr<const Policy> MakeLoopedBreadthFirst() {
  return std::make_unique<LoopedBreadthFirst>();
}

}  // namespace penstock::planner::internal
