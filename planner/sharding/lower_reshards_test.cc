#include "planner/sharding/lower_reshards.h"

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LowerReshardsTest : public testing::PlannerFixture {};

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
