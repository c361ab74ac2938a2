#include "planner/cluster/measured_collective.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kMeasuredCollectiveText = R"([[collective]]
kind = "all_reduce"
spread = "several each"
ranks = 4
algorithms = [["direct", 262144], ["hierarchical", 1048576]]
us = [
  [0, 20.5, 0],
  [65536, 40, 30],
]
)";

TEST(MeasuredCollectiveTest, IsReadBackFromItsText) {
  const auto all = ParseMeasuredCollectives(kMeasuredCollectiveText, "times.toml");
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 1u);
  const MeasuredCollective& measured = all->front();
  EXPECT_EQ(measured.kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(measured.spread, GroupSpread::kSeveralEach);
  EXPECT_EQ(measured.num_ranks, 4);
  EXPECT_EQ(measured.algorithms[1],
            (CollectiveVariant{CollectiveAlgorithm::kHierarchical, 1 << 20}));
  EXPECT_EQ(measured.times[1], (CollectiveTimes{65536, {40, 30}}));
  const auto again = ParseMeasuredCollectives(FormatMeasuredCollective(measured), "again.toml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *all);
}

TEST(MeasuredCollectiveTest, ErrorsSayWhereAndWhatWasExpected) {
  const auto error = [](std::string_view from, std::string_view to) {
    std::string text(kMeasuredCollectiveText);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return std::string(ToStd(ParseMeasuredCollectives(text, "t.toml").status().message()));
  };
  EXPECT_THAT(
      error("all_reduce", "permute"),
      HasSubstr("t.toml:2:8: collective.kind: unknown value \"permute\"; expected all_reduce, "
                "reduce_scatter, all_gather, all_to_all"));
  EXPECT_THAT(error("several each", "several"),
              HasSubstr("expected one host, a rank each, several"));
  EXPECT_THAT(error("ranks = 4", "ranks = 1"), HasSubstr("1 is out of range"));
  EXPECT_THAT(error("ranks = 4", "rank = 4"), HasSubstr("unknown key 'collective.rank'"));
  EXPECT_THAT(error("\"direct\", 262144", "\"direct\""), HasSubstr("a list of pairs [algorithm"));
  EXPECT_THAT(error("262144", "1"), HasSubstr("1 is out of range"));
  EXPECT_THAT(error("65536, 40, 30", "65536, 40"), HasSubstr("1 times for 65536 bytes"));
  EXPECT_THAT(error("65536, 40, 30", "65536, 0, 0"), HasSubstr("no time for 65536 bytes"));
  EXPECT_THAT(error("65536, 40, 30", "65536, -1, 30"), HasSubstr("-1"));
  EXPECT_THAT(error("65536, 40, 30", "0, 40, 30"), HasSubstr("expected growing sizes"));
  EXPECT_THAT(error("several each", "one host"), HasSubstr("needs hosts with several ranks"));
  EXPECT_THAT(error("[0, 20.5, 0],", "\"all\","), HasSubstr("a list of rows"));
  EXPECT_THAT(error("[[collective]]", "[[level]]"), HasSubstr("unknown key 'level'"));
}

}  // namespace
}  // namespace penstock::planner
