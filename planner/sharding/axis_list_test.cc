#include "planner/sharding/axis_list.h"

#include <gtest/gtest.h>

namespace penstock::planner {
namespace {

using graph::AxisRef;

// Axis 0 has size 16, axis 1 size 6.
constexpr AxisRef kListA = {0, 1, 16};

TEST(AxisListTest, PrefixOfAnAxis) {
  EXPECT_TRUE(IsPrefix(AxisRef{0, 1, 2}, kListA));
  EXPECT_TRUE(IsPrefix(kListA, kListA));
  EXPECT_FALSE(IsPrefix(AxisRef{0, 2, 2}, kListA));
  EXPECT_TRUE(IsPrefix(AxisRef{0, 2, 2}, AxisRef{0, 2, 4}));
  EXPECT_FALSE(IsPrefix(AxisRef{1, 1, 2}, AxisRef{1, 1, 3}));
  EXPECT_TRUE(IsWithin(AxisRef{0, 4, 2}, kListA));
  EXPECT_FALSE(IsWithin(AxisRef{0, 1, 4}, AxisRef{0, 2, 4}));
}

TEST(AxisListTest, PrefixOfAList) {
  const AxisRef b = {1, 1, 6};
  EXPECT_TRUE(IsPrefix(AxisSpan{}, AxisSpan{{kListA}}));
  EXPECT_TRUE(IsPrefix({{kListA}}, {{kListA, b}}));
  EXPECT_TRUE(IsPrefix({{kListA, {1, 1, 2}}}, {{kListA, b}}));
  EXPECT_FALSE(IsPrefix({{{0, 1, 2}, b}}, {{kListA, b}}));
  EXPECT_FALSE(IsPrefix({{kListA, b}}, {{kListA}}));
  EXPECT_FALSE(IsStrictPrefix({{kListA}}, {{kListA}}));
  EXPECT_TRUE(IsStrictPrefix({{{0, 1, 2}}}, {{kListA}}));
}

TEST(AxisListTest, PrefixBesideLeavesTheMajorPart) {
  EXPECT_EQ(PrefixBeside(kListA, {}), kListA);
  EXPECT_EQ(PrefixBeside(kListA, {{{1, 1, 6}}}), kListA);
  EXPECT_EQ(PrefixBeside(kListA, {{{0, 4, 2}}}), (AxisRef{0, 1, 4}));
  EXPECT_EQ(PrefixBeside(kListA, {{{0, 8, 2}, {0, 2, 2}}}), (AxisRef{0, 1, 2}));
  EXPECT_EQ(PrefixBeside(kListA, {{{0, 1, 2}}}), std::nullopt);
  EXPECT_EQ(PrefixBeside({0, 4, 4}, {{{0, 1, 4}}}), (AxisRef{0, 4, 4}));
  // Pieces of 6 that cannot stand together.
  EXPECT_EQ(PrefixBeside({1, 1, 2}, {{{1, 3, 2}}}), std::nullopt);
}

TEST(AxisListTest, AppendJoinsAdjacentPieces) {
  AxisList axes;
  AppendAxis({0, 1, 2}, &axes);
  AppendAxis({0, 2, 4}, &axes);
  AppendAxis({1, 1, 6}, &axes);
  ASSERT_EQ(axes.size(), 2u);
  EXPECT_EQ(axes[0], (AxisRef{0, 1, 8}));
  EXPECT_EQ(NumParts(axes), 48);
}

}  // namespace
}  // namespace penstock::planner
