#include "cli/recent_steps.h"

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(RecentStepsTest, IntervalsThatAlternateHaveOneMean) {
  RecentSteps steps;
  EXPECT_EQ(steps.step_s(), 0);
  EXPECT_EQ(steps.tokens_per_s(), 0);
  for (int i = 0; i < 200; ++i) {
    steps.Add(i % 2 == 0 ? 0.0001 : 0.0399, 100);
    if (i < 20) continue;
    EXPECT_NEAR(steps.step_s(), 0.02, 0.001) << i;
    EXPECT_NEAR(steps.tokens_per_s(), 5000, 250) << i;
  }
}

TEST(RecentStepsTest, StepsOfAWhileAgoDoNotCount) {
  RecentSteps steps;
  for (int i = 0; i < 100; ++i) steps.Add(2, 10);
  for (int i = 0; i < 10; ++i) steps.Add(0.1, 10);
  EXPECT_NEAR(steps.step_s(), 0.1, 1e-9);
  // Of long ones a few, so that one that is late does not count for all.
  for (int i = 0; i < 8; ++i) steps.Add(i == 7 ? 18 : 2, 10);
  EXPECT_NEAR(steps.step_s(), 4, 1e-9);
  EXPECT_NEAR(steps.tokens_per_s(), 2.5, 1e-9);
}

TEST(RecentStepsTest, ShortStepsTakeBoundedMemory) {
  RecentSteps steps;
  for (int i = 0; i < 100'000; ++i) steps.Add(20e-6, 1);
  EXPECT_NEAR(steps.step_s(), 20e-6, 1e-9);
  EXPECT_NEAR(steps.tokens_per_s(), 50'000, 1);
}

}  // namespace
}  // namespace penstock::cli
