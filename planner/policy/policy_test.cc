#include "planner/policy/policy.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/policy/least_times.h"
#include "planner/policy/pipeline.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::string OrderText(const std::vector<PhaseChoice>& order) {
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
  return OrderText(registry.Find(policy)->PlannedOrder(context));
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

TEST(PolicyTest, TheBubbleShrinksWithTheChunks) {
  const PolicyRegistry registry = BuiltinPolicies();
  for (int stages = 1; stages <= 6; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int microbatches = 1; microbatches <= 13; ++microbatches) {
        const absl::StatusOr<Pipeline> pipeline = MakePipeline({.num_groups = stages,
                                                                .num_microbatches = microbatches,
                                                                .num_chunks = chunks,
                                                                .splits_backward = false});
        const absl::StatusOr<PipelineOrders> orders =
            PlanPipeline(*registry.Find("1f1b"), *pipeline);
        ASSERT_TRUE(orders.ok()) << orders.status();
        const absl::StatusOr<Timeline> timeline = RunPipeline(*pipeline, *orders);
        ASSERT_TRUE(timeline.ok()) << timeline.status();
        if (microbatches < stages && chunks > 1) continue;
        const double bubble = 3.0 * (stages - 1) / chunks;
        EXPECT_NEAR(timeline->makespan_s, 3 * microbatches + bubble, 1e-9)
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

// What phases a stage has.
constexpr PhaseKinds kAllKinds[] = {{true, false, false}, {true, true, false}, {true, true, true}};

class EveryPolicyTest : public ::testing::TestWithParam<std::string> {};

// PlanPipeline holds the orders to the rules; RunPipeline finds orders that wait for each other.
TEST_P(EveryPolicyTest, OrdersAreCompleteAndDoNotWaitForEachOther) {
  const PolicyRegistry registry = BuiltinPolicies();
  const Policy& policy = *registry.Find(GetParam());
  const PolicyNeeds needs = policy.needs();
  const Placement placement = needs.placement.value_or(Placement::kLoop);
  const int most_chunks = std::min(needs.max_chunks, 3);
  int num_planned = 0;
  for (int stages = 1; stages <= 5; ++stages) {
    for (int microbatches = 1; microbatches <= 8; ++microbatches) {
      for (int chunks = needs.min_chunks; chunks <= most_chunks; ++chunks) {
        for (const PhaseKinds& kinds : kAllKinds) {
          absl::StatusOr<Pipeline> pipeline = MakePipeline({.num_groups = stages,
                                                            .num_microbatches = microbatches,
                                                            .num_chunks = chunks,
                                                            .placement = placement,
                                                            .latency_s = 0.25});
          if (!pipeline.ok()) continue;  // odd numbers in two directions
          pipeline->effort = 0.001;
          for (VirtualStage& stage : pipeline->stages) stage.kinds = kinds;
          const absl::StatusOr<PipelineOrders> orders = PlanPipeline(policy, *pipeline);
          ASSERT_TRUE(orders.ok()) << orders.status();
          const absl::StatusOr<Timeline> timeline = RunPipeline(*pipeline, *orders);
          ASSERT_TRUE(timeline.ok())
              << timeline.status() << "\n"
              << stages << " stages, " << microbatches << " micro-batches, " << chunks << " chunks";
          // No order is faster than the bounds.
          const LeastTimes least = LeastTimesOf(*pipeline);
          EXPECT_GE(timeline->makespan_s, least.makespan_s - 1e-9);
          for (int g = 0; g < stages; ++g) EXPECT_GE(timeline->end_s[g], least.end_s[g] - 1e-9);
          ++num_planned;
        }
      }
    }
  }
  EXPECT_GT(num_planned, 20);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicyTest, ::testing::ValuesIn([] {
                           const PolicyRegistry registry = BuiltinPolicies();
                           std::vector<std::string> names;
                           for (const std::string_view name : registry.Names()) {
                             names.emplace_back(name);
                           }
                           return names;
                         }()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

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
  EXPECT_THAT(registry.Names(), IsSupersetOf({"1f1b", "auto", "gpipe", "zb-h1"}));
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

TEST(PolicyTest, AWrongOrderIsRefused) {
  class OnlyForwards : public Nameless {
   public:
    std::string_view name() const override { return "only-forwards"; }
    std::vector<PhaseChoice> PlannedOrder(const StageContext&) const override {
      return {{PhaseKind::kForward, 0}};
    }
  };
  const absl::StatusOr<Pipeline> pipeline = MakePipeline({.num_groups = 2});
  EXPECT_THAT(PlanPipeline(OnlyForwards(), *pipeline).status().message(),
              HasSubstr("policy 'only-forwards' orders stage 0 wrongly: 0 phases of kind B"));
  EXPECT_THAT(PlanPipeline(Impostor(), *pipeline).status().message(),
              HasSubstr("policy 'gpipe' chooses nothing for stage 0"));
  EXPECT_EQ(PlanPipeline(Throwing(), *pipeline).status().message(),
            "policy 'throwing' threw: oops");
}

TEST(PolicyTest, APolicySaysWhatPipelinesItOrders) {
  const PolicyRegistry registry = BuiltinPolicies();
  const absl::StatusOr<Pipeline> two_chunks = MakePipeline({.num_groups = 2, .num_chunks = 2});
  EXPECT_EQ(CheckNeeds(*registry.Find("zb-h1"), *two_chunks).message(),
            "policy 'zb-h1' orders 1 chunk a group; there are 2");
  const absl::StatusOr<Pipeline> one_chunk = MakePipeline({.num_groups = 2});
  EXPECT_EQ(CheckNeeds(*registry.Find("interleaved"), *one_chunk).message(),
            "policy 'interleaved' orders at least 2 chunks a group; there are 1");
  const absl::StatusOr<Pipeline> vee =
      MakePipeline({.num_groups = 2, .num_chunks = 2, .placement = Placement::kVee});
  EXPECT_EQ(CheckNeeds(*registry.Find("1f1b"), *vee).message(),
            "policy '1f1b' needs the placement 'loop' of virtual stages; there is 'vee'");
}

TEST(PolicyTest, AStageNeedsACredit) {
  EXPECT_EQ(ActivationCreditsOf(Impostor(), Context(0, 2, 5)).value(), 5);
  EXPECT_EQ(ActivationCreditsOf(Stingy(), Context(0, 2, 5)).status().message(),
            "policy 'stingy' gives stage 0 0 activation credits; expected at least 1");
}

}  // namespace
}  // namespace penstock::planner
