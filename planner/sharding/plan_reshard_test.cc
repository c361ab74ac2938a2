#include "planner/sharding/plan_reshard.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "base/strings.h"
#include "planner/sharding/execution_sharding.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PlanReshardTest : public testing::PlannerFixture {
 protected:
  struct Ends {
    graph::Mesh mesh;
    graph::Sharding from;
    graph::Sharding to;
  };
  Ends Parse(std::string_view mesh, std::string_view type, std::string_view from,
             std::string_view to) const {
    const graph::Graph graph =
        MustParse(StrCat("mesh m = ", mesh, "\ngraph g {\n  %x = input : ", type, " ", from,
                         "\n  %y = reshard(%x) : ", type, " ", to, "\n  return %y\n}\n"));
    const graph::Mesh& m = graph.meshes()[0];
    return {m, ClosedSharding(m, graph.value(0)), ClosedSharding(m, graph.value(1))};
  }

  // The chain from %x to %y, "op @[...]" a step.
  std::vector<std::string> Chain(std::string_view mesh, std::string_view type,
                                 std::string_view from, std::string_view to) const {
    const Ends ends = Parse(mesh, type, from, to);
    std::vector<std::string> chain;
    for (const ReshardStep& step : PlanReshard(ends.mesh, ends.from, ends.to)) {
      chain.push_back(StrCat(step.op, " ", ToString(ends.mesh, step.sharding)));
    }
    return chain;
  }

  // Its cost in tiles of the source.
  double CostInTiles(std::string_view mesh, std::string_view type, std::string_view from,
                     std::string_view to) const {
    const Ends ends = Parse(mesh, type, from, to);
    double parts = 1;
    for (const graph::DimSharding& dim : ends.from.dims) {
      parts *= static_cast<double>(graph::NumParts(dim));
    }
    return parts * ReshardCost(ends.mesh, ends.from, PlanReshard(ends.mesh, ends.from, ends.to));
  }
};

TEST_F(PlanReshardTest, EqualShardingsNeedNothing) {
  EXPECT_THAT(Chain("[x=2]", "f32[8, 8]", "@[x, _]", "@[x, _]"), IsEmpty());
}

TEST_F(PlanReshardTest, APartialThatIsSplitIsOneReduceScatter) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[_, _] partial(sum, y)", "@[y, _]"),
              ElementsAre("reduce_scatter @[y, _]"));
}

TEST_F(PlanReshardTest, APartialThatIsNotSplitIsOneAllReduce) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[_, _] partial(sum, x)", "@[_, _]"),
              ElementsAre("all_reduce @[_, _]"));
}

TEST_F(PlanReshardTest, AnAxisMovesByOneAllToAll) {
  EXPECT_THAT(Chain("[x=2]", "f32[8, 8]", "@[x, _]", "@[_, x]"), ElementsAre("all_to_all @[_, x]"));
}

TEST_F(PlanReshardTest, OrderAloneIsOnePermute) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[x, y]", "@[y, x]"),
              ElementsAre("permute @[y, x]"));
  EXPECT_THAT(Chain("[x=2, y=3]", "f32[12]", "@[x.y]", "@[y.x]"), ElementsAre("permute @[y.x]"));
}

TEST_F(PlanReshardTest, SlicingNeedsNoCommunication) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[x, _]", "@[x, y]"),
              ElementsAre("local_slice @[x, y]"));
}

TEST_F(PlanReshardTest, AnAxisInTheWayIsGathered) {
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[x.y, _]", "@[x, _]"),
              ElementsAre("all_gather @[x, _]"));
}

TEST_F(PlanReshardTest, SliceThenMoveIsThePublishedPlan) {
  EXPECT_THAT(Chain("[x=4, y=2, z=4]", "f32[16, 8, 8]", "@[_, y.z, _]", "@[x.z, _, y]"),
              ElementsAre("local_slice @[x, y.z, _]", "all_to_all @[x.z, y, _]",
                          "all_to_all @[x.z, _, y]"));
}

TEST_F(PlanReshardTest, SumsInTimeComeBeforeSumsInSpace) {
  EXPECT_THAT(Chain("[mb=2 temporal, dp=2]", "f32[8]", "@[_] partial(sum, mb, dp)", "@[dp]"),
              ElementsAre("accumulate @[_] partial(sum, dp)", "reduce_scatter @[dp]"));
}

TEST_F(PlanReshardTest, MicrobatchesAreGatheredAndCut) {
  EXPECT_THAT(Chain("[mb=2 temporal, dp=2]", "f32[8]", "@[mb]", "@[dp]"),
              ElementsAre("gather_microbatches @[_]", "local_slice @[dp]"));
  EXPECT_THAT(Chain("[mb=2 temporal, dp=2]", "f32[8]", "@[_]", "@[mb.dp]"),
              ElementsAre("local_slice @[mb.dp]"));
}

TEST_F(PlanReshardTest, SubAxesMove) {
  EXPECT_THAT(Chain("[x=4]", "f32[8, 8]", "@[x, _]", "@[x:(1)2, x:(2)2]"),
              ElementsAre("all_to_all @[x:(1)2, x:(2)2]"));
}

TEST_F(PlanReshardTest, PiecesWithoutACommonRefinementGoByWayOfTheWhole) {
  EXPECT_THAT(Chain("[x=6]", "f32[12]", "@[x:(1)2]", "@[x:(1)3]"),
              ElementsAre("all_gather @[_]", "local_slice @[x:(1)3]"));
}

TEST_F(PlanReshardTest, AValueBecomesASumOfWhichOneTermCounts) {
  EXPECT_THAT(Chain("[x=2]", "f32[8]", "@[_]", "@[_] partial(sum, x)"),
              ElementsAre("local_slice @[_] partial(sum, x)"));
}

// --- Costs ---------------------------------------------------------------------------------------

TEST_F(PlanReshardTest, APermuteThenAnAllToAllSwapsAxesOfDifferentSizes) {
  EXPECT_THAT(Chain("[x=4, y=2]", "f32[16, 8]", "@[x, y]", "@[y, x]"),
              ElementsAre("all_to_all @[x:(1)2, y.x:(2)2]", "permute @[y, x]"));
  EXPECT_DOUBLE_EQ(CostInTiles("[x=4, y=2]", "f32[16, 8]", "@[x, y]", "@[y, x]"), 1.5);
}

// An all_to_all, a permute and an all_to_all would take 13/6 tiles.
TEST_F(PlanReshardTest, AxesWithoutACommonPieceMoveTogether) {
  EXPECT_THAT(Chain("[x=2, y=3]", "f32[12, 12]", "@[x, y]", "@[y, x]"),
              ElementsAre("all_to_all @[_, y.x]", "all_to_all @[y.x, _]", "all_to_all @[y, x]"));
  EXPECT_NEAR(CostInTiles("[x=2, y=3]", "f32[12, 12]", "@[x, y]", "@[y, x]"), 11.0 / 6, 1e-12);
}

TEST_F(PlanReshardTest, TilesArePermutedBeforeTheyGrow) {
  // Gathering y and slicing x would cost 3 tiles.
  EXPECT_DOUBLE_EQ(CostInTiles("[x=4, y=4]", "f32[16]", "@[y]", "@[x]"), 1);
  EXPECT_THAT(Chain("[x=4, y=4]", "f32[16]", "@[y]", "@[x]"),
              ElementsAre("local_slice @[y.x]", "permute @[x.y]", "all_gather @[x]"));
}

TEST_F(PlanReshardTest, ASumIsScatteredBeforeItIsGathered) {
  // An all_reduce, an all_gather and a slice would take 2 tiles.
  EXPECT_THAT(Chain("[x=2, y=2]", "f32[8, 8]", "@[y, _] partial(sum, x)", "@[x, _]"),
              ElementsAre("reduce_scatter @[y, x]", "all_gather @[_, x]", "all_to_all @[x, _]"));
  EXPECT_DOUBLE_EQ(CostInTiles("[x=2, y=2]", "f32[8, 8]", "@[y, _] partial(sum, x)", "@[x, _]"),
                   1.5);
}

TEST_F(PlanReshardTest, CostsCountWhatADeviceReceives) {
  const auto cost = [this](std::string_view from, std::string_view to) {
    return CostInTiles("[x=4, mb=2 temporal]", "f32[16, 8]", from, to);
  };
  EXPECT_DOUBLE_EQ(cost("@[_, _]", "@[x, _]"), 0);
  EXPECT_DOUBLE_EQ(cost("@[x, _]", "@[_, _]"), 3);
  EXPECT_DOUBLE_EQ(cost("@[x, _]", "@[_, x]"), 0.75);
  EXPECT_DOUBLE_EQ(cost("@[_, _] partial(sum, x)", "@[_, _]"), 1.5);
  EXPECT_DOUBLE_EQ(cost("@[_, _] partial(sum, x)", "@[x, _]"), 0.75);
  EXPECT_DOUBLE_EQ(cost("@[_, _] partial(sum, mb, x)", "@[_, _]"), 1.5);
}

}  // namespace
}  // namespace penstock::planner
