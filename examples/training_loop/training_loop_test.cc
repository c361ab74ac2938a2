// The example learns, and the layout does not matter to what it learns.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/run_example.h"

namespace penstock::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

TEST(TrainingLoopTest, LossFallsAndTrainedParametersClassifyNewPoints) {
  const ExampleRun run = RunExample("training_loop");
  ASSERT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("dp=2,tp=2,pp=1 on 4 devices\n"));
  const std::vector<double> losses = NumbersAfter(run.output, "loss");
  ASSERT_GE(losses.size(), 5u) << run.output;
  EXPECT_THAT(run.output, HasSubstr("\nstep 1 loss "));
  EXPECT_GT(losses.front(), 0.5);
  EXPECT_LT(losses.back(), 0.05);
  const std::vector<double> accuracy = NumbersAfter(run.output, "accuracy");
  ASSERT_EQ(accuracy.size(), 1u) << run.output;
  EXPECT_GT(accuracy[0], 0.95);  // 0.5 before training
}

TEST(TrainingLoopTest, LayoutsGiveTheSameLosses) {
  const ExampleRun one = RunExample("training_loop", "dp=1");
  ASSERT_EQ(one.exit_status, 0) << one.output;
  EXPECT_THAT(one.output, HasSubstr(" on 1 devices\n"));
  const std::vector<double> expected = NumbersAfter(one.output, "loss");
  ASSERT_GE(expected.size(), 5u);
  for (const char* layout : {"dp=2,tp=2", "dp=2,pp=2 4"}) {
    const ExampleRun many = RunExample("training_loop", layout);
    ASSERT_EQ(many.exit_status, 0) << many.output;
    EXPECT_THAT(many.output, HasSubstr(" on 4 devices\n"));
    EXPECT_THAT(NumbersAfter(many.output, "loss"), Pointwise(DoubleNear(1e-5), expected)) << layout;
  }
}

TEST(TrainingLoopTest, ChoosesAStrategy) {
  const ExampleRun automatic = RunExample("training_loop", "auto");
  EXPECT_EQ(automatic.exit_status, 0) << automatic.output;
  EXPECT_THAT(automatic.output, HasSubstr("dp=1,tp=1,pp=1 on 1 device"));
}

TEST(TrainingLoopTest, ErrorsAreTold) {
  const ExampleRun uneven = RunExample("training_loop", "dp=3");
  EXPECT_EQ(uneven.exit_status, 1);
  EXPECT_THAT(uneven.output, HasSubstr("dp = 3 does not divide batch = 128"));
  const ExampleRun unknown = RunExample("training_loop", "xp=2");
  EXPECT_EQ(unknown.exit_status, 1);
  EXPECT_THAT(unknown.output, HasSubstr("xp"));
  EXPECT_EQ(RunExample("training_loop", "dp=1 many").exit_status, 2);
}

}  // namespace
}  // namespace penstock::testing
