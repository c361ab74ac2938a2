#include "actors/cluster/clock_alignment.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(ClockAlignmentTest, AnAnchorLiesBetweenItsReadings) {
  const ClockAnchor anchor = ClockAnchor::Of(1'000'000, 8'000'000, 1'040'000);
  EXPECT_EQ(anchor.local_ns, 1'020'000);
  EXPECT_EQ(anchor.ahead_ns, 6'980'000);
  EXPECT_EQ(anchor.error_ns, 20'000);
}

TEST(ClockAlignmentTest, AClockIsItselfWithoutAnchors) {
  EXPECT_EQ(ClockAlignment().ToLocal(123), 123);
}

TEST(ClockAlignmentTest, ClocksThatAgreeWithinTheErrorAreOne) {
  ClockAlignment alignment;
  alignment.Add(ClockAnchor::Of(0, 30, 50));
  alignment.Add(ClockAnchor::Of(1000, 1010, 1050));
  EXPECT_EQ(alignment.ToLocal(500), 500);
  alignment.Add(ClockAnchor::Of(2000, 2200, 2050));  // ahead by more than can be explained
  EXPECT_NE(alignment.ToLocal(500), 500);
}

TEST(ClockAlignmentTest, OneAnchorGivesAConstantDifference) {
  ClockAlignment alignment;
  alignment.Add(ClockAnchor::Of(10 * kSecond, 5010 * kSecond, 10 * kSecond));
  EXPECT_EQ(alignment.ToLocal(5011 * kSecond), 11 * kSecond);
  EXPECT_EQ(alignment.ToLocal(4000 * kSecond), -1000 * kSecond);
}

TEST(ClockAlignmentTest, DriftIsSpreadOverTime) {
  ClockAlignment alignment;  // 1 ms in 100 s
  alignment.Add(ClockAnchor::Of(0, -kSecond, 0));
  alignment.Add(ClockAnchor::Of(100 * kSecond, 99 * kSecond + 1'000'000, 100 * kSecond));
  EXPECT_EQ(alignment.ToLocal(-kSecond), 0);
  EXPECT_EQ(alignment.ToLocal(99 * kSecond + 1'000'000), 100 * kSecond);
  EXPECT_EQ(alignment.ToLocal(49 * kSecond + 500'000), 50 * kSecond);
}

TEST(ClockAlignmentTest, ReadingsFromHostilePeersDoNotOverflow) {
  ClockAlignment alignment;
  alignment.Add(ClockAnchor::Of(5, INT64_MIN, 7));
  alignment.Add(ClockAnchor::Of(5, INT64_MAX, 7));
  EXPECT_EQ(alignment.ToLocal(42), 42);
  alignment.Add(ClockAnchor::Of(5, int64_t{1} << 60, 7));
  EXPECT_EQ(alignment.ToLocal(INT64_MIN), INT64_MIN);
  EXPECT_EQ(alignment.ToLocal((int64_t{1} << 60) + 100), 106);
}

}  // namespace
}  // namespace penstock::actors
