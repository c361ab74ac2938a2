// The example does what it says, in one process and in two, with the same output.

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/run_example.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

TEST(EmbedTest, TrainsInOneProcessAndInTwo) {
  const ExampleRun one = RunExample("embed");
  EXPECT_EQ(one.exit_status, 0);
  EXPECT_THAT(one.output, HasSubstr("step 9 loss "));
  EXPECT_EQ(RunExample("embed", "--procs").output, one.output);
}

}  // namespace
}  // namespace penstock::testing
