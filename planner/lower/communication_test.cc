#include "planner/lower/communication.h"

#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"

#include "base/strings.h"
#include "planner/sharding/execution_sharding.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using ::testing::ElementsAre;

class CommunicationTest : public testing::PlannerFixture {
 protected:
  Communication Plan(std::string_view mesh, std::string_view type, std::string_view from,
                     CollectiveKind kind, std::string_view to) const {
    const graph::Graph graph =
        MustParse(StrCat("mesh m = ", mesh, "\ngraph g {\n  %x = input : ", type, " ", from,
                         "\n  %y = reshard(%x) : ", type, " ", to, "\n  return %y\n}\n"));
    const Mesh& m = graph.meshes()[0];
    absl::StatusOr<Communication> communication =
        PlanCommunication(m, kind, graph.value(0).type, ClosedSharding(m, graph.value(0)),
                          ClosedSharding(m, graph.value(1)));
    EXPECT_TRUE(communication.ok()) << communication.status();
    return communication.ok() ? *std::move(communication) : Communication();
  }

  static std::vector<std::vector<uint32_t>> Groups(const Communication& communication) {
    std::vector<std::vector<uint32_t>> groups;
    for (const CollectiveSpec& spec : communication.groups) groups.push_back(spec.devices);
    return groups;
  }
};

TEST_F(CommunicationTest, GroupsDifferOnlyInTheAxesThatMove) {
  const Communication communication =
      Plan("[x=2, y=3]", "f32[6, 6]", "@[x, y]", CollectiveKind::kAllGather, "@[x, _]");
  EXPECT_THAT(Groups(communication), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  const Communication other =
      Plan("[x=2, y=3]", "f32[6, 6]", "@[x, y]", CollectiveKind::kAllGather, "@[_, y]");
  EXPECT_THAT(Groups(other), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
}

TEST_F(CommunicationTest, AnAllReduceIsDividedEvenly) {
  const Communication communication =
      Plan("[x=4]", "f32[2, 3]", "@[_, _] partial(max, x)", CollectiveKind::kAllReduce, "@[_, _]");
  ASSERT_EQ(communication.groups.size(), 1u);
  EXPECT_EQ(communication.groups[0].reduce, ReduceOp::kMax);
  EXPECT_THAT(communication.groups[0].counts, ElementsAre(2, 1, 2, 1));
  EXPECT_FALSE(communication.pack_dim || communication.unpack_dim);
}

TEST_F(CommunicationTest, PartsOfTheOutermostDimensionNeedNoCopy) {
  const Communication rows = Plan("[x=2]", "f32[5, 4]", "@[_, _] partial(sum, x)",
                                  CollectiveKind::kReduceScatter, "@[x, _]");
  EXPECT_FALSE(rows.pack_dim.has_value());
  EXPECT_THAT(rows.groups[0].counts, ElementsAre(12, 8));
  const Communication columns = Plan("[x=2]", "f32[5, 4]", "@[_, _] partial(sum, x)",
                                     CollectiveKind::kReduceScatter, "@[_, x]");
  EXPECT_EQ(columns.pack_dim, 1);
  EXPECT_THAT(columns.pack_sizes[0], ElementsAre(2, 2));
  EXPECT_THAT(columns.groups[0].counts, ElementsAre(10, 10));
}

TEST_F(CommunicationTest, AnAllGatherUnpacksColumns) {
  const Communication communication =
      Plan("[x=2]", "f32[4, 5]", "@[_, x]", CollectiveKind::kAllGather, "@[_, _]");
  EXPECT_EQ(communication.unpack_dim, 1);
  EXPECT_THAT(communication.unpack_sizes[0], ElementsAre(3, 2));
  EXPECT_THAT(communication.groups[0].counts, ElementsAre(12, 8));
}

TEST_F(CommunicationTest, AnAllToAllMovesUnevenPieces) {
  const Communication communication =
      Plan("[x=2]", "f32[3, 5]", "@[x, _]", CollectiveKind::kAllToAll, "@[_, x]");
  EXPECT_EQ(communication.pack_dim, 1);
  EXPECT_FALSE(communication.unpack_dim.has_value());
  // Device 0 holds 2 rows, device 1 holds 1; columns go 3 to device 0 and 2 to device 1.
  EXPECT_THAT(communication.groups[0].counts, ElementsAre(6, 4, 3, 2));
}

// Of 4 parts over [x=2, y:(1)2] of y=4, by 3; what y:(2)2 splits stays in groups of their own.
TEST_F(CommunicationTest, ARollPassesTilesRound) {
  const graph::Graph graph = MustParse(R"(mesh m = [x=2, y=4]
graph g {
  %x = input : f32[3, 16] @[_, x.y]
  %y = permute(%x) {axis=-1, shift=-4} : f32[3, 16] @[_, x.y]
  return %y
})");
  const std::optional<TileRoll> roll = TileRollOf(graph, graph.node(1));
  EXPECT_EQ(roll, (TileRoll{.dim = 1, .parts = 4, .by = 3}));
  EXPECT_EQ(TileRollOf(graph, graph.node(0)), std::nullopt);
  const Mesh& m = graph.meshes()[0];
  const graph::Sharding sharding = ClosedSharding(m, graph.value(0));
  const absl::StatusOr<Communication> communication =
      PlanCommunication(m, CollectiveKind::kPermute, graph.value(0).type, sharding, sharding, roll);
  ASSERT_TRUE(communication.ok()) << communication.status();
  EXPECT_THAT(Groups(*communication),
              ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  for (const CollectiveSpec& spec : communication->groups) {
    EXPECT_THAT(spec.peers, ElementsAre(3, 0, 1, 2));
    EXPECT_THAT(spec.counts, ElementsAre(6, 6, 6, 6));
  }
}

// Parts of 2 rows, of which the first goes one part down, in each half of the columns.
TEST_F(CommunicationTest, AHaloExchangeSendsWhatIsMissing) {
  const Communication communication =
      Plan("[x=4, y=2]", "f32[8, 6]", "@[x, y]", CollectiveKind::kAllToAll,
           "@[x window(of=7, low=1), y]");
  EXPECT_THAT(Groups(communication), ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  for (const CollectiveSpec& spec : communication.groups) {
    EXPECT_THAT(spec.counts, ElementsAre(0, 0, 0, 0,  //
                                         3, 0, 0, 0,  //
                                         0, 3, 0, 0,  //
                                         0, 0, 3, 0));
  }
  EXPECT_EQ(communication.halo_dim, 0);
  ASSERT_EQ(communication.halo.size(), 8u);
  EXPECT_THAT(communication.halo[0].sizes, ElementsAre());
  EXPECT_THAT(communication.halo[0].received, ElementsAre(1));
  EXPECT_THAT(communication.halo[2].starts, ElementsAre(0));
  EXPECT_THAT(communication.halo[2].sizes, ElementsAre(1));
  EXPECT_THAT(communication.halo[6].received, ElementsAre());
}

// 3 elements from either side: from two parts where they have 2.
TEST_F(CommunicationTest, AHaloMayComeFromSeveralParts) {
  const Communication communication = Plan("[x=4]", "f32[8]", "@[x]", CollectiveKind::kAllToAll,
                                           "@[x window(of=8, low=-3, size=7)]");
  ASSERT_EQ(communication.groups.size(), 1u);
  EXPECT_THAT(communication.groups[0].counts, ElementsAre(0, 2, 1, 0,  //
                                                          2, 0, 2, 1,  //
                                                          1, 2, 0, 2,  //
                                                          0, 1, 2, 0));
  EXPECT_THAT(communication.halo[1].starts, ElementsAre(0, 0, 1));
  EXPECT_THAT(communication.halo[1].sizes, ElementsAre(2, 2, 1));
  EXPECT_THAT(communication.halo[1].received, ElementsAre(2, 2, 1));
}

TEST_F(CommunicationTest, APermuteSendsEachTileToWhoWantsIt) {
  const Communication communication =
      Plan("[x=2, y=2]", "f32[4]", "@[x.y]", CollectiveKind::kPermute, "@[y.x]");
  ASSERT_EQ(communication.groups.size(), 1u);
  EXPECT_THAT(communication.groups[0].devices, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(communication.groups[0].peers, ElementsAre(0, 2, 1, 3));
}

TEST_F(CommunicationTest, NamesTheKindsThatNeedOthers) {
  EXPECT_EQ(CollectiveOf("reduce_scatter"), CollectiveKind::kReduceScatter);
  EXPECT_EQ(CollectiveOf("local_slice"), std::nullopt);
  EXPECT_EQ(CollectiveOf("broadcast"), std::nullopt);
}

}  // namespace
}  // namespace penstock::planner
