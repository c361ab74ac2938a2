#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"
#include "tests/support/policy_orders.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

Pipeline VeePolicy(int num_groups, int num_microbatches) {
  return MakePipeline({.num_groups = num_groups,
                       .num_microbatches = num_microbatches,
                       .num_chunks = 2,
                       .placement = Placement::kVee})
      .value();
}

TEST(VMinTest, HasTheOrdersOfTheExampleOfPatternSchedule) {
  EXPECT_THAT(ToTexts(PlanPipeline(*internal::MakeVMin(), VeePolicy(2, 3)).value()),
              ElementsAre("F0 F1 F0' B0' W0' B0 W0 F1' B1' W1' F2 B1 W1 F2' B2' W2' B2 W2",
                          "F0 F0' B0' B0 F1 F1' W0' W0 B1' B1 F2 F2' W1' W1 B2' B2 W2' W2"));
}

// As the authors' planner orders them.
TEST(VHalfTest, HasKnownOrders) {
  EXPECT_THAT(ToTexts(PlanPipeline(*internal::MakeVHalf(), VeePolicy(2, 3)).value()),
              ElementsAre("F0 F1 F2 F0' B0' W0' F1' B0 B1' W1' F2' B2' B1 W2' B2 W0 W1 W2",
                          "F0 F0' F1 F1' B0' W0' B0 W0 F2 F2' B1' B1 B2' B2 W1' W2' W1 W2"));
}

// The bubbles of the authors' planner, in times of F of a chunk. 1F1B has 6 (P - 1).
TEST(ControllableMemoryTest, HasTheBubblesOfTheAuthorsPlanner) {
  const int half[] = {0, 1, 5, 5, 11, 11, 17, 17};
  const int min[] = {0, 3, 5, 11, 15, 17, 23, 27};
  for (int groups = 1; groups <= 8; ++groups) {
    for (const int microbatches : {8, 13, 20}) {
      SCOPED_TRACE(::testing::Message()
                   << groups << " groups, " << microbatches << " micro-batches");
      const Pipeline pipeline = VeePolicy(groups, microbatches);
      EXPECT_DOUBLE_EQ(RunPolicy(*internal::MakeVHalf(), pipeline).makespan_s,
                       3 * microbatches + half[groups - 1] / 2.0);
      EXPECT_DOUBLE_EQ(RunPolicy(*internal::MakeVMin(), pipeline).makespan_s,
                       3 * microbatches + min[groups - 1] / 2.0);
    }
  }
}

// 1F1B keeps P. The orders, and so the peaks, do not depend on times.
TEST(ControllableMemoryTest, KeepsAHalfOrAThirdOfOneForwardOneBackward) {
  for (int groups = 1; groups <= 16; ++groups) {
    for (int microbatches = 1; microbatches <= 40; ++microbatches) {
      SCOPED_TRACE(::testing::Message()
                   << groups << " groups, " << microbatches << " micro-batches");
      const Pipeline pipeline = VeePolicy(groups, microbatches);
      EXPECT_LE(LargestPeak(RunPolicy(*internal::MakeVHalf(), pipeline)), (groups + 2) / 2);
      EXPECT_LE(LargestPeak(RunPolicy(*internal::MakeVMin(), pipeline)), (groups + 4) / 3);
    }
  }
}

TEST(ControllableMemoryTest, RunsOnAllPipelines) {
  ExpectRunsOnAllPipelines(*internal::MakeVHalf(), Placement::kVee);
  ExpectRunsOnAllPipelines(*internal::MakeVMin(), Placement::kVee);
}

}  // namespace
}  // namespace penstock::planner
