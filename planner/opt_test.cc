#include "planner/opt.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kText = R"(mesh m = [a=2]

graph g {
  %x = input : f32[8] @[a]
  %y = neg(%x) : f32[8]
  return %y
}
)";

class OptTest : public ::testing::Test {
 protected:
  std::string ErrorOf(std::string_view text, std::string_view passes) const {
    const absl::StatusOr<std::string> printed = Optimize(text, "g.pst", passes, ops_);
    return printed.ok() ? "" : std::string(printed.status().message());
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

TEST_F(OptTest, AppliesPassesInOrder) {
  const absl::StatusOr<std::string> printed =
      Optimize(kText, "g.pst", "verify, propagate,verify", ops_);
  ASSERT_TRUE(printed.ok()) << printed.status().message();
  EXPECT_EQ(*printed, R"(mesh m = [a=2]

graph g {
  %x = input : f32[8] @[a]
  %y = neg(%x) : f32[8] @[a?]
  return %y @[a?]
}
)");
}

TEST_F(OptTest, NoPassesPrintsTheGraph) { EXPECT_EQ(*Optimize(kText, "g.pst", "", ops_), kText); }

TEST_F(OptTest, EveryPublishedNameIsKnown) {
  const auto passes = FindPasses(
      "verify,propagate,propagate:basic,propagate:aggressive,propagate:op-priority,"
      "insert-reshards,split-sends,lower-reshards,gradients",
      ops_);
  ASSERT_TRUE(passes.ok()) << passes.status().message();
  EXPECT_EQ(passes->size(), 9u);
}

TEST_F(OptTest, ErrorsNameTheNearestPassAndThePlace) {
  EXPECT_EQ(ErrorOf(kText, "propagates"), "unknown pass 'propagates'; did you mean 'propagate'?");
  EXPECT_THAT(ErrorOf(kText, "zzzzzzzzzzzzzzzz"), HasSubstr("known: verify, gradients"));
  EXPECT_THAT(ErrorOf(kText, "verify,,verify"), HasSubstr("unknown pass ''"));
  EXPECT_THAT(ErrorOf("graph g { %x = imput : f32[8] }", "verify"), HasSubstr("g.pst:1:16:"));
  EXPECT_THAT(ErrorOf("graph g { %x = input : f32[8] assign(%x, %x) }", "verify"),
              HasSubstr("only a parameter or a state can be assigned"));
}

}  // namespace
}  // namespace penstock::planner
