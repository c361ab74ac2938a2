#include "cli/interruptible_start.h"

#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

TEST(DescribeRanksTest, NamesHostsWithTheirRanks) {
  std::vector<actors::NodePlace> places(20);
  for (size_t i = 0; i < places.size(); ++i) places[i].host = StrCat("n", i / 2);
  EXPECT_EQ(DescribeRanks(places, {3}), "n1 (rank 3)");
  EXPECT_EQ(DescribeRanks(places, {0, 1, 5}), "n0 (ranks 0-1) and n2 (rank 5)");
  EXPECT_EQ(DescribeRanks(places, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19}),
            "n0 (ranks 0-1), n1 (ranks 2-3), n2 (ranks 4-5), n3 (ranks 6-7), n4 (ranks 8-9), n5 "
            "(ranks 10-11), n6 (ranks 12-13), n7 (ranks 14-15) and 2 other hosts");
  EXPECT_EQ(DescribeRanks(places, {}), "");
}

TEST(DescribeRanksTest, NamesRanksWhereTheirHostsAreNotKnown) {
  EXPECT_EQ(DescribeRanks({}, {0, 2}), "ranks 0, 2");
  std::vector<actors::NodePlace> places(2);
  places[0].host = "host 0";
  places[0].is_host_named = false;
  EXPECT_EQ(DescribeRanks(places, {0, 1}), "ranks 0-1");
}

}  // namespace
}  // namespace penstock::cli
