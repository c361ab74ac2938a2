#include "actors/cluster/rank_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

NodeDescription NodeOn(const std::string& host, int pid) {
  NodeDescription node;
  node.host = host;
  node.pid = pid;
  return node;
}

TEST(RankTableTest, GivesTheRankAskedForOrTheFirstFreeOne) {
  RankTable table(3, 0);
  EXPECT_THAT(table.missing(), ElementsAre(0, 1, 2));
  EXPECT_EQ(*table.Join(1, NodeOn("b", 7)), 1u);
  EXPECT_EQ(*table.Join(-1, NodeOn("a", 8)), 0u);
  EXPECT_THAT(table.missing(), ElementsAre(2));
  EXPECT_FALSE(table.have_all_joined());
  EXPECT_EQ(*table.Join(-1, NodeOn("c", 9)), 2u);
  EXPECT_TRUE(table.have_all_joined());
  EXPECT_EQ(table.nodes()[1].host, "b");
  EXPECT_EQ(table.nodes()[1].rank, 1u);
}

TEST(RankTableTest, DealsOutTheDevices) {
  RankTable table(2, 5);
  ASSERT_TRUE(table.Join(1, {}).ok());
  EXPECT_EQ(table.node(1).first_device, 2u);
  EXPECT_EQ(table.node(1).num_devices, 3u);
}

TEST(RankTableTest, KeepsReservedRanksForThoseWhoAskForThem) {
  RankTable table(2, 0);
  table.Reserve(0, 7, "a");
  EXPECT_EQ(*table.Join(-1, NodeOn("b", 8)), 1u);
  EXPECT_EQ(table.Join(-1, NodeOn("c", 9)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*table.Join(0, NodeOn("a", 7)), 0u);
}

TEST(RankTableTest, SaysWhyThereIsNoRank) {
  RankTable table(3, 0);
  ASSERT_TRUE(table.Join(1, NodeOn("b", 7)).ok());
  EXPECT_EQ(table.Join(3, {}).status().message(),
            "rank 3 is out of range: the job has ranks 0 to 2");
  EXPECT_EQ(table.Join(1, {}).status().message(),
            "rank 1 is taken by node 1 (pid 7 on b); ranks that are free: 0, 2 (without --rank a "
            "node takes the first)");
  ASSERT_TRUE(table.Join(0, {}).ok());
  ASSERT_TRUE(table.Join(2, {}).ok());
  EXPECT_EQ(table.Join(-1, {}).status().message(), "all 3 nodes of the job have joined");
  RankTable one(1, 1, {});
  ASSERT_TRUE(one.Join(-1, {}).ok());
  EXPECT_EQ(one.Join(-1, {}).status().message(), "the only node of the job has joined");
  EXPECT_EQ(table.Join(1, {}).status().message(),
            "rank 1 is taken by node 1 (pid 7 on b); all 3 nodes of the job have joined");
}

TEST(RankTableTest, DoesNotGiveTheRankOfALostNodeAgain) {
  RankTable table(1, 0);
  table.MarkLost(0);
  EXPECT_TRUE(table.is_lost(0));
  EXPECT_FALSE(table.Join(0, {}).ok());
  EXPECT_FALSE(table.Join(-1, {}).ok());
}

TEST(RankTableTest, AHostKeepsTheNameThatItWasGiven) {
  RankTable table(2, 2);
  table.Reserve(0, 7, "10.0.0.7");
  table.Reserve(1, 8, "b");
  ASSERT_TRUE(table.Join(0, NodeOn("a", 70)).ok());
  ASSERT_TRUE(table.Join(1, NodeOn("b", 80)).ok());
  EXPECT_EQ(table.NameOf(0), "node 0 (pid 70 on 10.0.0.7)");
  EXPECT_EQ(ToString(table.node(0)).substr(0, 20), "rank 0 on 10.0.0.7: ");
  EXPECT_EQ(table.node(0).host, "a");
  EXPECT_EQ(table.node(1).given_host, "");
  EXPECT_EQ(table.NameOf(1), "node 1 (pid 80 on b)");
}

TEST(RankTableTest, NamesANodeAsFarAsItIsKnown) {
  RankTable table(3, 0);
  EXPECT_EQ(table.NameOf(0), "node 0");
  table.Reserve(1, 5, "a");
  EXPECT_EQ(table.NameOf(1), "node 1 (pid 5 on a)");
  ASSERT_TRUE(table.Join(2, NodeOn("", 6)).ok());
  EXPECT_EQ(table.NameOf(2), "node 2 (pid 6)");
}

TEST(RankTableTest, DevicesAreThoseOfTheProcess) {
  RankTable even(2, 4);
  RankTable uneven(2, 4, {3, 1});
  RankTable other(2, 6, {3, 1});  // of another plan
  for (RankTable* table : {&even, &uneven, &other}) {
    ASSERT_TRUE(table->Join(0, {}).ok());
    ASSERT_TRUE(table->Join(1, {}).ok());
  }
  EXPECT_EQ(even.node(1).first_device, 2u);
  EXPECT_EQ(uneven.node(0).num_devices, 3u);
  EXPECT_EQ(uneven.node(1).first_device, 3u);
  EXPECT_EQ(uneven.node(1).num_devices, 1u);
  EXPECT_EQ(other.node(1).first_device, 3u);
  EXPECT_EQ(other.node(1).num_devices, 3u);
}

}  // namespace
}  // namespace penstock::actors
