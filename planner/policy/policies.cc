// The policies that come with the planner.

#include <algorithm>

#include "absl/status/status.h"

#include "planner/policy/policy.h"

namespace penstock::planner {
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

class GPipe : public Policy {
 public:
  std::string_view name() const override { return "gpipe"; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    return OrderWithLead(context, std::max(context.num_microbatches * context.num_chunks(), 1));
  }
};

class OneForwardOneBackward : public Policy {
 public:
  std::string_view name() const override { return "1f1b"; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const override {
    const int after = context.num_stages - context.stage - 1;  // stages behind this one
    const int chunks = context.num_chunks();
    const int num_rounds = NumRounds(context);
    const int largest_round = (context.num_microbatches + num_rounds - 1) / num_rounds;
    // Until the first micro-batch is back. With several chunks, that is when the first round has
    // passed all chunks but the last, and its first micro-batch has gone there and come back.
    const int lead = chunks == 1 ? after + 1 : (chunks - 1) * largest_round + 2 * after + 1;
    return OrderWithLead(context, std::clamp(lead, 1, context.num_microbatches * chunks));
  }
};

}  // namespace

PolicyRegistry BuiltinPolicies() {
  PolicyRegistry registry;
  // Names are distinct, so adding cannot fail.
  registry.Add(std::make_unique<GPipe>()).IgnoreError();
  registry.Add(std::make_unique<OneForwardOneBackward>()).IgnoreError();
  return registry;
}

}  // namespace penstock::planner
