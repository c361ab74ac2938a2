#include "base/shape.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PartOfTest, WorkedExample) {
  EXPECT_EQ(PartOf(5, 0, 4), (Range{0, 2}));
  EXPECT_EQ(PartOf(5, 1, 4), (Range{2, 3}));
  EXPECT_EQ(PartOf(5, 2, 4), (Range{3, 4}));
  EXPECT_EQ(PartOf(5, 3, 4), (Range{4, 5}));
}

TEST(PartOfTest, PartsCoverTheDimensionOnceAndDifferByOneAtMost) {
  for (int64_t extent = 0; extent < 70; ++extent) {
    for (int64_t parts = 1; parts < 20; ++parts) {
      int64_t end = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const Range range = PartOf(extent, part, parts);
        ASSERT_EQ(range.begin, end);
        ASSERT_GE(range.size(), extent / parts);
        ASSERT_LE(range.size(), (extent + parts - 1) / parts);
        end = range.end;
      }
      ASSERT_EQ(end, extent);
    }
  }
}

// Part p of k consists of the parts p*j .. p*j+j-1 of k*j: what lets sub-axes and several axes
// refine one another.
TEST(PartOfTest, FinerPartsRefineCoarserOnes) {
  for (int64_t extent = 0; extent < 70; ++extent) {
    for (int64_t parts = 1; parts < 9; ++parts) {
      for (int64_t factor = 1; factor < 9; ++factor) {
        for (int64_t part = 0; part < parts; ++part) {
          const Range coarse = PartOf(extent, part, parts);
          const Range first = PartOf(extent, part * factor, parts * factor);
          const Range last = PartOf(extent, part * factor + factor - 1, parts * factor);
          ASSERT_EQ(first.begin, coarse.begin);
          ASSERT_EQ(last.end, coarse.end);
        }
      }
    }
  }
}

TEST(PartOfTest, EmptyPartsAreLegal) {
  EXPECT_EQ(PartOf(0, 2, 3).size(), 0);
  EXPECT_EQ(PartOf(1, 0, 3).size(), 1);
  EXPECT_EQ(PartOf(1, 1, 3).size(), 0);
  EXPECT_EQ(PartOf(1, 2, 3).size(), 0);
}

TEST(PartOfTest, LargeExtents) {
  constexpr int64_t kExtent = int64_t{1} << 48;
  EXPECT_EQ(PartOf(kExtent, 4095, 4096).end, kExtent);
  EXPECT_EQ(PartOf(kExtent, 4095, 4096).size(), kExtent / 4096);
}

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(NumElements(Shape{}), 1);
  EXPECT_EQ(NumElements(Shape{3, 4}), 12);
  EXPECT_EQ(NumElements(Shape{3, 0, 4}), 0);
}

TEST(ShapeTest, Strides) {
  EXPECT_THAT(RowMajorStrides(Shape{}), ElementsAre());
  EXPECT_THAT(RowMajorStrides(Shape{5}), ElementsAre(1));
  EXPECT_THAT(RowMajorStrides(Shape{2, 3, 4}), ElementsAre(12, 4, 1));
}

TEST(ShapeTest, Prints) {
  EXPECT_EQ(ToString(Shape{}), "[]");
  EXPECT_EQ(ToString(Shape{8, 16}), "[8, 16]");
}

TEST(CheckShapeTest, Limits) {
  EXPECT_TRUE(CheckShape(Shape{}).ok());
  EXPECT_TRUE(CheckShape(Shape{1 << 24, 1 << 24}).ok());
  EXPECT_TRUE(CheckShape(Shape(kMaxRank, 1)).ok());
  EXPECT_TRUE(CheckShape(Shape{0, 5}).ok());
  EXPECT_THAT(std::string(CheckShape(Shape(kMaxRank + 1, 1)).message()), HasSubstr("rank 17"));
  EXPECT_THAT(std::string(CheckShape(Shape{2, -1}).message()), HasSubstr("-1 is negative"));
  EXPECT_THAT(std::string(CheckShape(Shape{1 << 24, (1 << 24) + 1}).message()),
              HasSubstr("more than 2^48"));
  EXPECT_FALSE(CheckShape(Shape{INT64_MAX, INT64_MAX}).ok());
  // An empty dimension does not hide extents whose strides would overflow.
  EXPECT_FALSE(CheckShape(Shape{0, int64_t{1} << 40, int64_t{1} << 40}).ok());
}

}  // namespace
}  // namespace penstock
