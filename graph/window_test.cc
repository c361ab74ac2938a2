#include "graph/window.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::graph {
namespace {

using ::testing::ElementsAre;

// What each of `parts` parts of the results reads of an operand of `operand` elements.
std::vector<Range> Reads(const Window& window, int64_t operand, int64_t parts) {
  std::vector<Range> ranges;
  for (int64_t p = 0; p < parts; ++p) {
    ranges.push_back(window.Reads(PartOf(window.extent, p, parts), operand));
  }
  return ranges;
}

TEST(WindowTest, SliceInTheMiddle) {
  EXPECT_THAT(Reads({.extent = 8, .low = 4}, 16, 4),
              ElementsAre(Range{4, 6}, Range{6, 8}, Range{8, 10}, Range{10, 12}));
}

TEST(WindowTest, PadOnBothSides) {
  EXPECT_THAT(Reads({.extent = 12, .low = -3}, 8, 4),
              ElementsAre(Range{0, 0}, Range{0, 3}, Range{3, 6}, Range{6, 8}));
}

TEST(WindowTest, PartsOfNothingButPadding) {
  EXPECT_THAT(Reads({.extent = 8, .low = -2}, 2, 4),
              ElementsAre(Range{0, 0}, Range{0, 2}, Range{2, 2}, Range{2, 2}));
}

TEST(WindowTest, Stride2) {
  EXPECT_THAT(Reads({.extent = 4, .stride = 2, .low = 1}, 8, 4),
              ElementsAre(Range{1, 2}, Range{3, 4}, Range{5, 6}, Range{7, 8}));
  EXPECT_THAT(Reads({.extent = 8, .stride = 2}, 16, 4),
              ElementsAre(Range{0, 3}, Range{4, 7}, Range{8, 11}, Range{12, 15}));
}

TEST(WindowTest, Window3) {
  EXPECT_THAT(Reads({.extent = 8, .low = -1, .size = 3}, 8, 4),
              ElementsAre(Range{0, 3}, Range{1, 5}, Range{3, 7}, Range{5, 8}));
}

TEST(WindowTest, Uneven7Over4) {
  // The parts of 7 results begin at 0, 2, 4 and 6.
  EXPECT_THAT(Reads({.extent = 7, .low = 1}, 8, 4),
              ElementsAre(Range{1, 3}, Range{3, 5}, Range{5, 7}, Range{7, 8}));
}

TEST(WindowTest, PartThinnerThanTheHalo) {
  EXPECT_THAT(Reads({.extent = 4, .low = -2, .size = 5}, 4, 4),
              ElementsAre(Range{0, 3}, Range{0, 4}, Range{0, 4}, Range{1, 4}));
}

TEST(WindowTest, EmptyPartsReadNothing) {
  EXPECT_THAT(Reads({.extent = 2, .low = 1}, 4, 4),
              ElementsAre(Range{1, 2}, Range{0, 0}, Range{2, 3}, Range{0, 0}));
}

// 3 taps with padding 1 by steps of 2 over 8 elements: result j reads 2 j - 1 .. 2 j + 1, so
// element i is read by the results i / 2 and, where i is odd, (i + 1) / 2.
TEST(WindowTest, GradientOfAStride) {
  const Window gradient = {.extent = 8, .divisor = 2, .low = 0, .size = 2};
  for (int64_t i = 0; i < 8; ++i) {
    const Range reads = gradient.Reads({i, i + 1}, 4);
    EXPECT_EQ(reads, (Range{i / 2, std::min<int64_t>((i + 1) / 2 + 1, 4)})) << i;
  }
}

TEST(WindowTest, RefusesWhatCouldOverflow) {
  EXPECT_TRUE(CheckWindow({.extent = 8, .stride = 2, .low = -3, .size = 3}).ok());
  EXPECT_FALSE(CheckWindow({.extent = -1}).ok());
  EXPECT_FALSE(CheckWindow({.extent = 8, .stride = 0}).ok());
  EXPECT_FALSE(CheckWindow({.extent = 8, .divisor = 0}).ok());
  EXPECT_FALSE(CheckWindow({.extent = 8, .size = 0}).ok());
  EXPECT_FALSE(CheckWindow({.extent = int64_t{1} << 40, .stride = int64_t{1} << 40}).ok());
  EXPECT_FALSE(CheckWindow({.extent = 8, .low = int64_t{1} << 50}).ok());
}

TEST(WindowTest, PrintsWhatDiffersFromTheDefaults) {
  EXPECT_EQ(ToString(Window{.extent = 7}), "window(of=7)");
  EXPECT_EQ(ToString(Window{.extent = 7, .stride = 2, .divisor = 3, .low = -1, .size = 5}),
            "window(of=7, stride=2, divisor=3, low=-1, size=5)");
}

}  // namespace
}  // namespace penstock::graph
