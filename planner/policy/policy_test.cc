#include "planner/policy/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::string ToText(const std::vector<PhaseChoice>& order) {
  std::string text;
  for (const PhaseChoice& choice : order) {
    StrAppend(&text, text.empty() ? "" : " ", Name(choice.kind), choice.microbatch);
    if (choice.chunk > 0) StrAppend(&text, "'");
  }
  return text;
}

StageContext Context(int stage, int num_stages, int num_microbatches, bool backward = true,
                     bool weight = false, int num_chunks = 1) {
  return {stage, num_stages, num_microbatches,
          std::vector<PhaseKinds>(num_chunks, {true, backward, weight})};
}

std::string Order(std::string_view policy, const StageContext& context) {
  const PolicyRegistry registry = BuiltinPolicies();
  return ToText(registry.Find(policy)->PlannedOrder(context));
}

TEST(PolicyTest, GPipeRunsAllForwardsFirst) {
  EXPECT_EQ(Order("gpipe", Context(0, 2, 3)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(Order("gpipe", Context(1, 2, 3)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(Order("gpipe", Context(0, 1, 2, true, true)), "F0 F1 B0 W0 B1 W1");
}

TEST(PolicyTest, OneForwardOneBackwardKeepsStagesMinusStageInFlight) {
  EXPECT_EQ(Order("1f1b", Context(0, 3, 4)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Order("1f1b", Context(1, 3, 4)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Order("1f1b", Context(2, 3, 4)), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(Order("1f1b", Context(0, 4, 2)), "F0 F1 B0 B1");
  EXPECT_EQ(Order("1f1b", Context(1, 2, 2, true, true)), "F0 B0 W0 F1 B1 W1");
}

// A prime marks chunk 1. As in figure 4 of Narayanan et al., 2021: the first stage runs two rounds
// of forwards before its first backward, which is of the last chunk.
TEST(PolicyTest, ChunksAreInterleaved) {
  EXPECT_EQ(Order("1f1b", Context(0, 2, 4, true, false, 2)),
            "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3");
  EXPECT_EQ(Order("1f1b", Context(1, 2, 4, true, false, 2)),
            "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3");
  EXPECT_EQ(Order("gpipe", Context(0, 2, 2, true, false, 2)), "F0 F1 F0' F1' B0' B1' B0 B1");
  // Fewer micro-batches than stages.
  EXPECT_EQ(Order("1f1b", Context(2, 3, 1, true, true, 2)), "F0 F0' B0' W0' B0 W0");
}

// The time of a step, with a forward of 1 and a backward of 2 for all chunks of a stage together.
// Not a number: the orders wait for each other for ever.
double StepTime(const Policy& policy, int num_stages, int num_chunks, int num_microbatches) {
  std::vector<std::vector<PhaseChoice>> orders;
  for (int s = 0; s < num_stages; ++s) {
    orders.push_back(
        policy.PlannedOrder(Context(s, num_stages, num_microbatches, true, false, num_chunks)));
  }
  const int last = num_stages * num_chunks - 1;
  std::map<std::tuple<PhaseKind, int, int>, double> ends;  // kind, virtual stage, micro-batch
  std::vector<size_t> next(num_stages, 0);
  std::vector<double> time(num_stages, 0);
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (int s = 0; s < num_stages; ++s) {
      for (; next[s] < orders[s].size(); ++next[s], has_moved = true) {
        const PhaseChoice& choice = orders[s][next[s]];
        const int stage = choice.chunk * num_stages + s;
        const bool is_forward = choice.kind == PhaseKind::kForward;
        std::vector<std::tuple<PhaseKind, int, int>> needs;
        if (is_forward && stage > 0) needs.emplace_back(choice.kind, stage - 1, choice.microbatch);
        if (!is_forward) needs.emplace_back(PhaseKind::kForward, stage, choice.microbatch);
        if (!is_forward && stage < last) {
          needs.emplace_back(choice.kind, stage + 1, choice.microbatch);
        }
        if (!std::all_of(needs.begin(), needs.end(), [&](auto& n) { return ends.contains(n); })) {
          break;
        }
        for (const auto& need : needs) time[s] = std::max(time[s], ends[need]);
        time[s] += (is_forward ? 1.0 : 2.0) / num_chunks;
        ends[{choice.kind, stage, choice.microbatch}] = time[s];
      }
    }
  }
  for (int s = 0; s < num_stages; ++s) {
    if (next[s] < orders[s].size()) return std::numeric_limits<double>::quiet_NaN();
  }
  return *std::max_element(time.begin(), time.end());
}

TEST(PolicyTest, TheBubbleShrinksWithTheChunks) {
  const PolicyRegistry registry = BuiltinPolicies();
  const Policy& policy = *registry.Find("1f1b");
  for (int stages = 1; stages <= 6; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int microbatches = 1; microbatches <= 13; ++microbatches) {
        const double bubble = 3.0 * (stages - 1) / chunks;
        if (microbatches < stages && chunks > 1) {
          EXPECT_FALSE(std::isnan(StepTime(policy, stages, chunks, microbatches)));
          continue;
        }
        EXPECT_NEAR(StepTime(policy, stages, chunks, microbatches), 3 * microbatches + bubble, 1e-9)
            << stages << " stages, " << chunks << " chunks, " << microbatches << " micro-batches";
      }
    }
  }
}

TEST(PolicyTest, InferenceHasForwardsAlone) {
  for (std::string_view name : {"gpipe", "1f1b"}) {
    EXPECT_EQ(Order(name, Context(0, 3, 3, false)), "F0 F1 F2") << name;
  }
}

TEST(PolicyTest, EveryPhaseOnceAndInMicrobatchOrder) {
  const PolicyRegistry registry = BuiltinPolicies();
  for (std::string_view name : registry.Names()) {
    for (int stages = 1; stages <= 5; ++stages) {
      for (int stage = 0; stage < stages; ++stage) {
        for (int microbatches = 1; microbatches <= 7; ++microbatches) {
          for (bool weight : {false, true}) {
            for (int chunks = 1; chunks <= 3; ++chunks) {
              const StageContext context =
                  Context(stage, stages, microbatches, true, weight, chunks);
              std::vector<std::array<int, kNumPolicyKinds>> next(chunks);
              for (const PhaseChoice& choice : registry.Find(name)->PlannedOrder(context)) {
                EXPECT_EQ(choice.microbatch, next[choice.chunk][static_cast<int>(choice.kind)]++);
              }
              EXPECT_THAT(next,
                          Each(ElementsAre(microbatches, microbatches, weight ? microbatches : 0)));
            }
          }
        }
      }
    }
  }
}

TEST(PolicyTest, DefaultSchedulerFollowsTheOrderStepAfterStep) {
  const PolicyRegistry registry = BuiltinPolicies();
  const StageContext context = Context(0, 2, 3);
  const Policy& policy = *registry.Find("1f1b");
  const std::unique_ptr<StageScheduler> scheduler = policy.CreateScheduler(context);
  for (int step = 0; step < 3; ++step) {
    std::vector<PhaseChoice> order;
    while (const auto choice = scheduler->Next(StageView())) order.push_back(*choice);
    EXPECT_EQ(order, policy.PlannedOrder(context));
    EXPECT_EQ(scheduler->Next(StageView()), std::nullopt);
    scheduler->Reset();
  }
}

class Nameless : public Policy {
 public:
  std::string_view name() const override { return ""; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext&) const override { return {}; }
};

class Impostor : public Nameless {
 public:
  std::string_view name() const override { return "gpipe"; }
};

TEST(PolicyTest, RegistryRefusesDuplicatesAndKnowsItsNames) {
  PolicyRegistry registry = BuiltinPolicies();
  EXPECT_THAT(registry.Names(), ElementsAre("1f1b", "gpipe"));
  EXPECT_EQ(registry.Find("zigzag"), nullptr);
  EXPECT_EQ(registry.Add(std::make_unique<Impostor>()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(registry.Add(std::make_unique<Nameless>()).code(), absl::StatusCode::kInvalidArgument);
}

class Throwing : public Policy {
 public:
  std::string_view name() const override { return "throwing"; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext&) const override {
    throw std::runtime_error("oops");
  }
  int ActivationCredits(const StageContext&) const override { throw std::runtime_error("oops"); }
};

class Stingy : public Nameless {
 public:
  std::string_view name() const override { return "stingy"; }
  int ActivationCredits(const StageContext&) const override { return 0; }
};

TEST(PolicyTest, WhatAPolicyThrowsIsAnError) {
  const StageContext context = Context(1, 2, 5);
  for (const absl::Status& status : {ActivationCreditsOf(Throwing(), context).status(),
                                     MakeSchedule(Throwing(), context).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "policy 'throwing' threw at stage 1: oops");
  }
}

TEST(PolicyTest, AStageNeedsACredit) {
  EXPECT_EQ(ActivationCreditsOf(Impostor(), Context(0, 2, 5)).value(), 5);
  EXPECT_EQ(ActivationCreditsOf(Stingy(), Context(0, 2, 5)).status().message(),
            "policy 'stingy' gives stage 0 0 activation credits; expected at least 1");
}

}  // namespace
}  // namespace penstock::planner
