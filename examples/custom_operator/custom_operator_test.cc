// The example's checks of its operator pass, and they are made.

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/run_example.h"

namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Lt;
using ::testing::SizeIs;

TEST(CustomOperatorTest, LayoutsAndDifferencesAgree) {
  const ExampleRun run = RunExample("custom_operator");
  EXPECT_EQ(run.exit_status, 0) << run.output;
  // Two gradients and two layouts of two devices.
  EXPECT_THAT(NumbersAfter(run.output, "largest difference"), AllOf(SizeIs(4), Each(Lt(1e-7))))
      << run.output;
  EXPECT_THAT(NumbersAfter(run.output, "on"), ElementsAre(2, 2)) << run.output;
}

}  // namespace
}  // namespace penstock::testing
