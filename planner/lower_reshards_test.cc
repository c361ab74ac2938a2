#include "planner/lower_reshards.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "base/strings.h"
#include "planner/execution_sharding.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LowerReshardsTest : public testing::PlannerFixture {
 protected:
  // The chain from %x to %y, "op @[...]" a step.
  std::vector<std::string> Chain(std::string_view mesh, std::string_view type,
                                 std::string_view from, std::string_view to) const {
    const graph::Graph graph =
        MustParse(StrCat("mesh m = ", mesh, "\ngraph g {\n  %x = input : ", type, " ", from,
                         "\n  %y = reshard(%x) : ", type, " ", to, "\n  return %y\n}\n"));
    const graph::Mesh& m = graph.meshes()[0];
    std::vector<std::string> chain;
    for (const ReshardStep& step :
         PlanReshard(m, ClosedSharding(m, graph.value(0)), ClosedSharding(m, graph.value(1)))) {
      chain.push_back(StrCat(step.op, " ", ToString(m, step.sharding)));
    }
    return chain;
  }
};

TEST_F(LowerReshardsTest, EqualShardingsNeedNothing) {
  EXPECT_THAT(Chain("[x=2]", "f32[8, 8]", "@[x, _]", "@[x, _]"), IsEmpty());
}

TEST_F(LowerReshardsTest, APartialThatIsSplitIsOneReduceScatter) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[_, _] partial(sum, y)", "@[y, _]"),
              ElementsAre("reduce_scatter @[y, _]"));
}

TEST_F(LowerReshardsTest, APartialThatIsNotSplitIsOneAllReduce) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[_, _] partial(sum, x)", "@[_, _]"),
              ElementsAre("all_reduce @[_, _]"));
}

TEST_F(LowerReshardsTest, AnAxisMovesByOneAllToAll) {
  EXPECT_THAT(Chain("[x=2]", "f32[8, 8]", "@[x, _]", "@[_, x]"), ElementsAre("all_to_all @[_, x]"));
}

TEST_F(LowerReshardsTest, OrderAloneIsOnePermute) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[x, y]", "@[y, x]"),
              ElementsAre("permute @[y, x]"));
  EXPECT_THAT(Chain("[x=2, y=3]", "f32[12]", "@[x.y]", "@[y.x]"), ElementsAre("permute @[y.x]"));
}

TEST_F(LowerReshardsTest, SlicingNeedsNoCommunication) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[x, _]", "@[x, y]"),
              ElementsAre("local_slice @[x, y]"));
}

TEST_F(LowerReshardsTest, AnAxisInTheWayIsGathered) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[x.y, _]", "@[x, _]"),
              ElementsAre("all_gather @[x, _]"));
}

TEST_F(LowerReshardsTest, SliceThenMoveIsThePublishedPlan) {
  EXPECT_THAT(Chain("[x=4, y=2, z=4]", "f32[16, 8, 8]", "@[_, y.z, _]", "@[x.z, _, y]"),
              ElementsAre("local_slice @[x, y.z, _]", "all_to_all @[x.z, y, _]",
                          "all_to_all @[x.z, _, y]"));
}

TEST_F(LowerReshardsTest, SumsInTimeComeBeforeSumsInSpace) {
  EXPECT_THAT(Chain("[mb=2 temporal, dp=2]", "f32[8]", "@[_] partial(sum, mb, dp)", "@[dp]"),
              ElementsAre("accumulate @[_] partial(sum, dp)", "reduce_scatter @[dp]"));
}

TEST_F(LowerReshardsTest, MicrobatchesAreGatheredAndCut) {
  EXPECT_THAT(Chain("[mb=2 temporal, dp=2]", "f32[8]", "@[mb]", "@[dp]"),
              ElementsAre("gather_microbatches @[_]", "local_slice @[dp]"));
  EXPECT_THAT(Chain("[mb=2 temporal, dp=2]", "f32[8]", "@[_]", "@[mb.dp]"),
              ElementsAre("local_slice @[mb.dp]"));
}

TEST_F(LowerReshardsTest, SubAxesMove) {
  EXPECT_THAT(Chain("[x=4]", "f32[8, 8]", "@[x, _]", "@[x:(1)2, x:(2)2]"),
              ElementsAre("all_to_all @[x:(1)2, x:(2)2]"));
}

TEST_F(LowerReshardsTest, PiecesWithoutACommonRefinementGoByWayOfTheWhole) {
  EXPECT_THAT(Chain("[x=6]", "f32[12]", "@[x:(1)2]", "@[x:(1)3]"),
              ElementsAre("all_gather @[_]", "local_slice @[x:(1)3]"));
}

TEST_F(LowerReshardsTest, AValueBecomesASumOfWhichOneTermCounts) {
  EXPECT_THAT(Chain("[x=2]", "f32[8]", "@[_]", "@[_] partial(sum, x)"),
              ElementsAre("local_slice @[_] partial(sum, x)"));
}

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
