#include "planner/sharding/lower_reshards.h"

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace penstock::planner
