#include <algorithm>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"
#include "tests/support/policy_orders.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

// `num_microbatches` in each direction.
Pipeline Bidirectional(int num_groups, int num_microbatches, double forward_s, double backward_s,
                       double weight_s) {
  return MakePipeline({.num_groups = num_groups,
                       .num_microbatches = 2 * num_microbatches,
                       .num_chunks = 2,
                       .placement = Placement::kBidirectional,
                       .forward_s = forward_s,
                       .backward_s = backward_s,
                       .weight_s = weight_s,
                       .splits_backward = weight_s > 0})
      .value();
}

TEST(ChimeraTest, HasTheOrdersOfItsExample) {
  const auto policy = internal::MakeChimera();
  EXPECT_THAT(ToTexts(PlanPipeline(*policy, Bidirectional(4, 2, 1, 2, 0)).value()),
              ElementsAre("F0 F1 F0' B0' F1' B1' B0 B1", "F0 F0' F1 F1' B0' B0 B1' B1",
                          "F0' F0 F1' F1 B0 B0' B1 B1'", "F0' F1' F0 B0 F1 B1 B0' B1'"));
}

// The F of the second unit of micro-batches start before the last B of the first.
TEST(ChimeraTest, JoinsUnits) {
  const auto policy = internal::MakeChimera();
  EXPECT_EQ(ToText(PlanPipeline(*policy, Bidirectional(4, 4, 1, 2, 0)).value()[0]),
            "F0 F1 F0' B0' F1' B1' B0 F2 B1 F3 F2' B2' F3' B3' B2 B3");
  EXPECT_EQ(ToText(PlanPipeline(*policy, Bidirectional(2, 2, 1, 1, 1)).value()[0]),
            "F0 F0' B0' W0' B0 W0 F1 F1' B1' W1' B1 W1");
}

// With D stages and N micro-batches in both directions, the paper's bubble is (D - 2) / (2N + D -
// 2) if B takes as long as F.
TEST(ChimeraTest, HasThePapersBubble) {
  for (const int groups : {2, 4, 6, 8}) {
    for (int units = 1; units <= 4; ++units) {
      const Pipeline pipeline = Bidirectional(groups, units * groups / 2, 1, 1, 0);
      const Timeline timeline = RunPolicy(*internal::MakeChimera(), pipeline);
      const double total = units * groups;
      EXPECT_DOUBLE_EQ(timeline.makespan_s, 2 * total + groups - 2);
      EXPECT_NEAR(BubbleOf(timeline), (groups - 2) / (2 * total + groups - 2), 1e-9);
    }
    // With twice as long a B, the critical path has D times F and 2D - 2 times B.
    const Pipeline pipeline = Bidirectional(groups, groups / 2, 1, 2, 0);
    EXPECT_DOUBLE_EQ(RunPolicy(*internal::MakeChimera(), pipeline).makespan_s,
                     groups + 2 * (2 * groups - 2));
  }
}

TEST(ChimeraTest, KeepsMoreInTheMiddle) {
  EXPECT_THAT(RunPolicy(*internal::MakeChimera(), Bidirectional(8, 12, 1, 2, 0)).peak_activations,
              ElementsAre(5, 6, 7, 8, 8, 7, 6, 5));
}

TEST(ChimeraTest, RunsOnAllPipelines) {
  ExpectRunsOnAllPipelines(*internal::MakeChimera(), Placement::kBidirectional);
}

// The order of DualPipeOrder's example. The last groups mirror the first.
TEST(DualPipeTest, HasKnownOrders) {
  const auto policy = internal::MakeDualPipe();
  EXPECT_THAT(
      ToTexts(PlanPipeline(*policy, Bidirectional(4, 4, 1, 1, 1)).value()),
      ElementsAre("F0 F1 F2 F0' B0' W0' F1' F3 B1' W1' F2' B0 W0 B2' W2' F3' B1 W1 B3' W3' B2 W2 "
                  "B3 W3",
                  "F0 F0' F1 F1' F2 B0' W0' F2' B0 W0 F3 B1' W1' F3' B1 W1 B2' W2' B2 W2 B3' B3 "
                  "W3' W3",
                  "F0' F0 F1' F1 F2' B0 W0 F2 B0' W0' F3' B1 W1 F3 B1' W1' B2 W2 B2' W2' B3 B3' "
                  "W3 W3'",
                  "F0' F1' F2' F0 B0 W0 F1 F3' B1 W1 F2 B0' W0' B2 W2 F3 B1' W1' B3 W3 B2' W2' "
                  "B3' W3'"));
}

// DeepSeek's table states a bubble of (P/2 - 1) (F&B + B' - 3W), where B' = B + W and F&B is the
// time of an overlapped pair, in which neither can send before both end. Here they run one after
// the other, so F&B = F + B', and each sends when it ends, which saves up to (P/2 - 1) B.
TEST(DualPipeTest, HasAtMostTheStatedBubble) {
  struct Times {
    double f;
    double b;
    double w;
  };
  for (const Times& t : {Times{1, 1, 1}, Times{10, 11, 9}, Times{5, 7, 3}}) {
    for (const int groups : {2, 4, 6, 8}) {
      for (int microbatches = groups; microbatches <= 20; ++microbatches) {
        SCOPED_TRACE(::testing::Message() << groups << " groups, " << microbatches);
        const Pipeline pipeline = Bidirectional(groups, microbatches, t.f, t.b, t.w);
        const Timeline timeline = RunPolicy(*internal::MakeDualPipe(), pipeline);
        const double bubble = timeline.makespan_s - 2 * microbatches * (t.f + t.b + t.w);
        const double stated = (groups / 2 - 1) * (t.f + 2 * (t.b + t.w) - 3 * t.w);
        EXPECT_LE(bubble, stated + 1e-9);
        EXPECT_GE(bubble, stated - (groups / 2 - 1) * t.b - 1e-9);
        if (t.f == t.w) {
          EXPECT_NEAR(bubble, groups / 2 - 1, 1e-9);
        }
        EXPECT_DOUBLE_EQ(LargestPeak(timeline), groups + 1);
      }
    }
  }
}

TEST(DualPipeTest, OrdersFewMicrobatches) {
  EXPECT_THAT(
      ToTexts(PlanPipeline(*internal::MakeDualPipe(), Bidirectional(2, 1, 1, 1, 1)).value()),
      ElementsAre("F0 F0' B0' W0' B0 W0", "F0' F0 B0 W0 B0' W0'"));
}

TEST(DualPipeTest, RunsOnAllPipelines) {
  ExpectRunsOnAllPipelines(*internal::MakeDualPipe(), Placement::kBidirectional);
}

TEST(BidirectionalPoliciesTest, NeedAnEvenNumberOfStages) {
  Pipeline pipeline = Bidirectional(2, 4, 1, 1, 1);
  pipeline.num_groups = 1;
  pipeline.placement.num_groups = 1;
  for (const auto make : {internal::MakeChimera, internal::MakeDualPipe}) {
    EXPECT_EQ(make()->PlanOrders(pipeline).status().message(),
              "two pipelines in opposite directions need an even number of stages; there are 1");
  }
}

}  // namespace
}  // namespace penstock::planner
