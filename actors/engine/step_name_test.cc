#include "actors/engine/step_name.h"

#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

TEST(StepNameTest, StepsCountFromOne) {
  EXPECT_EQ(StepNumber(0), 1);
  EXPECT_EQ(StepName(41), "step 42");
}

// Of a session that goes on where others have ended.
TEST(StepNameTest, AResumedSessionCountsOn) {
  EXPECT_EQ(StepName(0, 200), "step 201");
  EXPECT_EQ(StepName(41, 0), "step 42");
  EXPECT_EQ(StepName(INT64_MAX, 200), StepName(INT64_MAX));
  EXPECT_EQ(StepName(INT64_MIN, 200), StepName(INT64_MIN + 200));
}

// A peer may send any index.
TEST(StepNameTest, EveryIndexHasANumber) {
  EXPECT_EQ(StepNumber(INT64_MIN), INT64_MIN + 1);
  EXPECT_EQ(StepNumber(INT64_MAX - 1), INT64_MAX);
  EXPECT_EQ(StepNumber(INT64_MAX), INT64_MAX);
}

}  // namespace
}  // namespace penstock::actors
