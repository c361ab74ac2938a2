#include "planner/sharding/lower_reshards.h"

#include <map>
#include <string>

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LowerReshardsTest : public testing::PlannerFixture {
 protected:
  absl::Status InsertReshardsStatus(graph::Graph& graph) const {
    EXPECT_TRUE(Propagate(PropagationLevel::kUserPriority, &graph).ok());
    return planner::InsertReshards(ops_, graph);
  }
};

TEST_F(LowerReshardsTest, TheLastStepKeepsTheName) {
  const graph::Graph graph = Lower(R"(mesh m = [x=2]
graph g {
  %x = input : f32[8, 8] @[x, _]
  %y = reshard(%x) : f32[8, 8] @[_, x]
  %z = neg(%y) : f32[8, 8]
  return %z @[_, x]
})");
  EXPECT_THAT(Statements(graph, "all_to_all"),
              ElementsAre("%y = all_to_all(%x) : f32[8, 8] @[_, x]"));
  EXPECT_THAT(Statements(graph, "reshard"), IsEmpty());
}

TEST_F(LowerReshardsTest, AnAccumulationKnowsItsReduction) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal]
graph g {
  %x = input : f32[8] @[mb]
  %y = reduce_max(%x) {axes=[0]} : f32[]
  %z = reduce_sum(%x) {axes=[0]} : f32[]
  return %y, %z
})");
  EXPECT_THAT(Statements(graph, "accumulate"),
              ElementsAre("%y = accumulate(%y.local) {reduction=\"max\"} : f32[] @[]",
                          "%z = accumulate(%z.local) : f32[] @[]"));
}

// Parts that are whole tiles travel; others come together first.
TEST_F(LowerReshardsTest, ARollOfWholeTilesIsAPermute) {
  const graph::Graph graph = Lower(R"(mesh m = [x=2, y=3]
graph g {
  %x = input : f32[12, 5] @[x.y, _]
  %y = roll(%x) {axis=0, shift=2} : f32[12, 5]
  %z = roll(%y) {axis=0, shift=4} : f32[12, 5]
  return %z @[x.y, _]
})");
  EXPECT_THAT(Statements(graph, "permute"),
              ElementsAre("%y = permute(%x) {axis=0, shift=2} : f32[12, 5] @[x.y, _]"));
  EXPECT_THAT(Statements(graph, "roll"),
              ElementsAre("%z.local = roll(%y_1) {axis=0, shift=4} : f32[12, 5] @[_, _]"));
}

// A slice of a split dimension gets the elements that its parts lack, and nothing is gathered.
TEST_F(LowerReshardsTest, ASliceExchangesItsHalo) {
  const graph::Graph graph = Lower(R"(mesh m = [d=4]
graph g {
  %x = input : f32[16, 6] @[d, _]
  %y = slice(%x) {start=[1, 0], limit=[16, 6]} : f32[15, 6]
  return %y @[d, _]
})");
  EXPECT_EQ(CountOps(graph),
            (std::map<std::string, int>{{"input", 1}, {"halo_exchange", 1}, {"slice", 1}}));
  EXPECT_THAT(Statements(graph, "halo_exchange"),
              ElementsAre("%x_1 = halo_exchange(%x) : f32[16, 6] @[d window(of=15, low=1), _]"));
  EXPECT_THAT(Statements(graph, "slice"),
              ElementsAre("%y = slice(%x_1) {limit=[16, 6], start=[1, 0]} : f32[15, 6] @[d, _]"));
}

// The gradient of a slice is a pad, and the other way round.
TEST_F(LowerReshardsTest, GradientsOfSlicesExchangeTheirHalos) {
  const graph::Graph graph = Lower(Differentiate(MustParse(R"(mesh m = [d=4]
graph g {
  %x = parameter : f32[16] @[d]
  %y = slice(%x) {start=[1], limit=[16]} : f32[15] @[d]
  %z = pad(%y) {low=[3], high=[0]} : f32[18] @[d]
  %s = square(%z) : f32[18]
  %l = reduce_sum(%s) {axes=[0]} : f32[]
  return %l
})")));
  EXPECT_THAT(Statements(graph, "halo_exchange"), SizeIs(4));
  EXPECT_THAT(Statements(graph, "all_gather"), IsEmpty());
  EXPECT_THAT(Statements(graph, "slice"), SizeIs(2));
  EXPECT_THAT(Statements(graph, "pad"), SizeIs(2));
}

// What is there already is read where it is: by kernels of a replicated operand, too.
TEST_F(LowerReshardsTest, AWindowThatIsThereNeedsNoStep) {
  const graph::Graph graph = Lower(R"(mesh m = [d=4]
graph g {
  %x = input : f32[16] @[d]
  %w = input : f32[9] @[_]
  %y = slice(%x) {start=[0], limit=[16], stride=[2]} : f32[8]
  %z = pad(%w) {low=[3], high=[4]} : f32[16]
  return %y @[d], %z @[d]
})");
  EXPECT_EQ(CountOps(graph), (std::map<std::string, int>{{"input", 2}, {"slice", 1}, {"pad", 1}}));
}

// One row is cheaper to send when it has been cut out.
TEST_F(LowerReshardsTest, ASliceThatEveryoneWantsIsCutBeforeItIsGathered) {
  const graph::Graph graph = Lower(R"(mesh m = [d=4]
graph g {
  %x = input : f32[16, 6] @[d, _]
  %y = slice(%x) {start=[0, 0], limit=[2, 6]} : f32[2, 6]
  return %y @[_, _]
})");
  EXPECT_THAT(Statements(graph, "all_gather"), SizeIs(1));
  EXPECT_THAT(Statements(graph, "all_gather"),
              ElementsAre("%y_1 = all_gather(%y) : f32[2, 6] @[_, _]"));
}

TEST_F(LowerReshardsTest, WindowsAreForOneReader) {
  graph::Graph graph = MustParse(R"(mesh m = [d=4]
graph g {
  %x = input : f32[16] @[d]
  %w = halo_exchange(%x) : f32[16] @[d window(of=15, low=1)]
  %y = neg(%w) : f32[16] @[d]
  return %y @[d]
})");
  const absl::Status status = InsertReshardsStatus(graph);
  EXPECT_EQ(status.message(),
            "%w is held in the windows @[d window(of=15, low=1)], but neg reads it as @[d]");
}

TEST_F(LowerReshardsTest, WhatIsHeldInWindowsIsNotSplitFurther) {
  graph::Graph graph = MustParse(R"(mesh m = [a=4, b=2]
graph g {
  %x = input : f32[16, 6] @[a, _]
  %h = reshard(%x) : f32[16, 6] @[a window(of=15, low=1), _]
  %g = reshard(%h) : f32[16, 6] @[a window(of=15, low=1), b]
  %y = slice(%g) {start=[1, 0], limit=[16, 6]} : f32[15, 6] @[a, b]
  return %y @[a, b]
})");
  ASSERT_TRUE(InsertReshardsStatus(graph).ok());
  const absl::Status status = planner::LowerReshards(ops_, graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(":5:3: %g: @[a window(of=15, low=1), _] holds the windows of one reader; "
                        "there is no way from there to @[a window(of=15, low=1), b]; split"));
}

TEST_F(LowerReshardsTest, PassesLeaveExchangesAlone) {
  const graph::Graph once = Lower(R"(mesh m = [d=4]
graph g {
  %x = input : f32[16] @[d]
  %y = slice(%x) {start=[1], limit=[16]} : f32[15]
  return %y @[d]
})");
  EXPECT_EQ(graph::PrintGraph(Lower(graph::PrintGraph(once))), graph::PrintGraph(once));
}

TEST_F(LowerReshardsTest, ASliceOverMicrobatchesIsNoExchange) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal, x=2]
graph g {
  %x = input : f32[8] @[mb.x]
  %y = slice(%x) {start=[1], limit=[7]} : f32[6]
  return %y
})");
  EXPECT_THAT(Statements(graph, "halo_exchange"), IsEmpty());
  EXPECT_THAT(Statements(graph, "gather_microbatches"), SizeIs(1));
}

TEST_F(LowerReshardsTest, ARollOverMicrobatchesIsNoPermute) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal, x=2]
graph g {
  %x = input : f32[4] @[mb.x]
  %y = roll(%x) {axis=0, shift=1} : f32[4]
  return %y
})");
  EXPECT_THAT(Statements(graph, "permute"), IsEmpty());
  EXPECT_THAT(Statements(graph, "gather_microbatches"), SizeIs(1));
}

}  // namespace
}  // namespace penstock::planner
