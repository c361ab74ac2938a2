#include "gtest/gtest.h"

#include "actors/cluster/start_limit_internal.h"

namespace penstock::actors {
namespace {

constexpr kj::TimePoint kBegin = kj::origin<kj::TimePoint>();

TEST(StartLimitTest, AnyNodeOfAStartEndsIt) {
  StartLimit limit(2);
  limit.Begin(0, 4, kBegin);
  EXPECT_TRUE(limit.HasRoom(kBegin));
  limit.Begin(4, 1, kBegin);
  EXPECT_FALSE(limit.HasRoom(kBegin));
  limit.End(5);  // of none
  EXPECT_FALSE(limit.HasRoom(kBegin));
  limit.End(3);
  limit.End(2);  // the same start
  EXPECT_TRUE(limit.HasRoom(kBegin));
  limit.Begin(5, 1, kBegin);
  EXPECT_FALSE(limit.HasRoom(kBegin));
}

TEST(StartLimitTest, AStartThatHangsGivesItsPlaceUp) {
  StartLimit limit(1);
  limit.Begin(0, 1, kBegin);
  EXPECT_FALSE(limit.HasRoom(kBegin + StartLimit::kPatience - 1 * kj::MILLISECONDS));
  EXPECT_TRUE(limit.HasRoom(kBegin + StartLimit::kPatience));
}

}  // namespace
}  // namespace penstock::actors
