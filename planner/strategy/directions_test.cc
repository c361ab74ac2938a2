#include "planner/strategy/directions.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/op.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "planner/opt.h"
#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

class DirectionsTest : public ::testing::Test {
 protected:
  std::string Split(const std::string& text) {
    const auto split = Optimize(text, "in.pst", "split-directions,verify", ops_);
    return split.ok() ? *split : std::string(split.status().message());
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

TEST_F(DirectionsTest, HalvesTheTemporalAxis) {
  EXPECT_EQ(Split(R"(mesh m = [mb=8 temporal, dp=2, tp=2]
graph g {
  %x = input : f32[32, 4] @[mb.dp, _]
  %w = parameter : f32[4, 8] @[_, tp] replicated(mb)
  %y = matmul(%x, %w) : f32[32, 8] @[?, dp:(1)2]
  %loss = sum_squares(%y) : f32[] @[] partial(sum, mb, dp)
  return %loss @[] partial(sum, mb)
})"),
            R"(mesh m = [mb=4 temporal, direction=2, dp=2, tp=2]

graph g {
  %x = input : f32[32, 4] @[mb.direction.dp, _]
  %w = parameter : f32[4, 8] @[_, tp] replicated(mb, direction)
  %y = matmul(%x, %w) : f32[32, 8] @[?, dp]
  %loss = sum_squares(%y) : f32[] @[] partial(sum, mb, direction, dp)
  return %loss @[] partial(sum, mb, direction)
}
)");
}

TEST_F(DirectionsTest, TheDirectionIsTheFirstAxisWithDevices) {
  EXPECT_THAT(Split("mesh m = [tp=2, mb=4 temporal]\ngraph g {\n"
                    "  %x = input : f32[8, 4] @[mb, tp]\n  return %x\n}"),
              HasSubstr("mesh m = [direction=2, tp=2, mb=2 temporal]\n\ngraph g {\n"
                        "  %x = input : f32[8, 4] @[mb.direction, tp]"));
  EXPECT_THAT(Split("mesh m = [mb=4 temporal]\ngraph g {\n  %x = input : f32[8] @[mb]\n"
                    "  return %x\n}"),
              HasSubstr("mesh m = [mb=2 temporal, direction=2]"));
}

TEST_F(DirectionsTest, NeedsAnEvenNumberOfMicrobatches) {
  const auto of_mesh = [](const std::string& mesh) {
    return mesh + "\ngraph g {\n  %x = input : f32[30]\n  return %x\n}";
  };
  EXPECT_THAT(Split(of_mesh("mesh m = [mb=5 temporal, dp=2]")), HasSubstr("there are 5"));
  EXPECT_THAT(Split(of_mesh("mesh m = [mb=2 temporal]")), HasSubstr("at least 4; there are 2"));
  EXPECT_THAT(Split(of_mesh("mesh m = [dp=2]")), HasSubstr("there is 1"));
  EXPECT_THAT(Split(of_mesh("mesh m = [mb=4 temporal, direction=2]")),
              HasSubstr("has an axis 'direction'"));
  EXPECT_THAT(Split(of_mesh("mesh m = [mb=4 temporal]\nmesh n = [mb=4 temporal, dp=2]")),
              HasSubstr("stages that lie on one mesh"));
}

TEST_F(DirectionsTest, AModelIsCutOnceForTwoGroups) {
  const PolicyRegistry policies = BuiltinPolicies();
  EXPECT_EQ(StagesPerGroup(*policies.Find("dualpipe")), 1);
  EXPECT_EQ(StagesPerGroup(*policies.Find("chimera")), 1);
  EXPECT_EQ(StagesPerGroup(*policies.Find("dualpipev")), 2);
  EXPECT_EQ(StagesPerGroup(*policies.Find("1f1b")), 1);
}

}  // namespace
}  // namespace penstock::planner
