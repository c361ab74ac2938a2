#include "planner/sharding/halo.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>

#include "base/strings.h"
#include "planner/sharding/plan_reshard.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using graph::DimSharding;
using graph::Sharding;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

DimSharding HaloSplit(int64_t parts) {
  DimSharding dim;
  dim.axes = {{0, 1, parts}};
  return dim;
}

DimSharding Windows(int64_t parts, const graph::Window& window) {
  DimSharding dim = HaloSplit(parts);
  dim.window = window;
  return dim;
}

// "source: begin-end" of what each part gets.
std::vector<std::vector<std::string>> Pieces(const DimSharding& held, const DimSharding& needed,
                                             int64_t extent) {
  std::vector<std::vector<std::string>> texts;
  for (const std::vector<HaloPiece>& part : HaloPieces(held, needed, extent)) {
    std::vector<std::string>& pieces = texts.emplace_back();
    for (const HaloPiece& piece : part) {
      pieces.push_back(StrCat(piece.source, ": ", piece.range.begin, "-", piece.range.end));
    }
  }
  return texts;
}

TEST(HaloPiecesTest, AllButTheFirst) {
  EXPECT_THAT(
      Pieces(HaloSplit(4), Windows(4, {.extent = 7, .low = 1}), 8),
      ElementsAre(ElementsAre("1: 2-3"), ElementsAre("2: 4-5"), ElementsAre("3: 6-7"), IsEmpty()));
}

TEST(HaloPiecesTest, SliceInTheMiddle) {
  // The parts of the result read 4-6, 6-8, 8-10 and 10-12; those held are 0-4, 4-8, 8-12 and 12-16.
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 8, .low = 4}), 16),
              ElementsAre(ElementsAre("1: 4-6"), IsEmpty(), IsEmpty(), ElementsAre("2: 10-12")));
}

TEST(HaloPiecesTest, Pad) {
  // The parts of 12 results are of 3 and read nothing, 0-3, 3-6 and 6-8; those held are of 2.
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 12, .low = -3}), 8),
              ElementsAre(IsEmpty(), ElementsAre("0: 0-2"), ElementsAre("1: 3-4"), IsEmpty()));
}

TEST(HaloPiecesTest, Stride2IsLocalWherePartsMatch) {
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 8, .stride = 2}), 16),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), IsEmpty()));
  // The parts of 5 results begin at 0, 2, 3 and 4 and read 0-3, 4-5, 6-7 and 8-9.
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 5, .stride = 2}), 9),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), IsEmpty()));
}

TEST(HaloPiecesTest, Stride2) {
  // The results read 4, 6 and 8; the parts held are 0-3, 3-5, 5-8 and 8-10.
  EXPECT_THAT(
      Pieces(HaloSplit(4), Windows(4, {.extent = 3, .stride = 2, .low = 4}), 10),
      ElementsAre(ElementsAre("1: 4-5"), ElementsAre("2: 6-7"), ElementsAre("3: 8-9"), IsEmpty()));
}

TEST(HaloPiecesTest, Window3TakesOneFromEachSide) {
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 8, .low = -1, .size = 3}), 8),
              ElementsAre(ElementsAre("1: 2-3"), ElementsAre("0: 1-2", "2: 4-5"),
                          ElementsAre("1: 3-4", "3: 6-7"), ElementsAre("2: 5-6")));
}

TEST(HaloPiecesTest, UnevenWindow3Of7Over4) {
  // Parts are 0-2, 2-4, 4-6 and 6-7.
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 7, .low = -1, .size = 3}), 7),
              ElementsAre(ElementsAre("1: 2-3"), ElementsAre("0: 1-2", "2: 4-5"),
                          ElementsAre("1: 3-4", "3: 6-7"), ElementsAre("2: 5-6")));
}

TEST(HaloPiecesTest, PartsThinnerThanTheHaloTakeFromSeveral) {
  EXPECT_THAT(
      Pieces(HaloSplit(4), Windows(4, {.extent = 4, .low = -2, .size = 5}), 4),
      ElementsAre(ElementsAre("1: 1-2", "2: 2-3"), ElementsAre("0: 0-1", "2: 2-3", "3: 3-4"),
                  ElementsAre("0: 0-1", "1: 1-2", "3: 3-4"), ElementsAre("1: 1-2", "2: 2-3")));
}

TEST(HaloPiecesTest, EmptyPartsHaveNothingAndMayNeedNothing) {
  // 2 of 5 elements over 4: the parts of the result are 0, none, 1 and none; those held are 0-2,
  // 2-3, 3-4 and 4-5.
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 2, .low = 3}), 5),
              ElementsAre(ElementsAre("2: 3-4"), IsEmpty(), ElementsAre("3: 4-5"), IsEmpty()));
  // 3 elements over 4: 0, 1, 2 and none.
  EXPECT_THAT(Pieces(HaloSplit(4), Windows(4, {.extent = 5, .low = -1}), 3),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), IsEmpty()));
}

// Over 2 of the 4 parts: device 1 has what devices 2 and 3 have not.
TEST(HaloPiecesTest, CopiesSendToTheSideWhereTheyAre) {
  const DimSharding held = HaloSplit(2);
  EXPECT_THAT(Pieces(held, Windows(4, {.extent = 7, .low = 1}), 8),
              ElementsAre(IsEmpty(), ElementsAre("2: 4-5"), IsEmpty(), IsEmpty()));
  EXPECT_THAT(Pieces(DimSharding(), Windows(4, {.extent = 7, .low = 1}), 8),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), IsEmpty()));
}

class HaloTest : public testing::PlannerFixture {
 protected:
  // The shardings of two results, on [x=4, y=2].
  std::vector<Sharding> Parse(std::string_view type, std::string_view from, std::string_view to) {
    const graph::Graph graph =
        MustParse(StrCat("mesh m = [x=4, y=2]\ngraph g {\n  %x = input : ", type, " ", from,
                         "\n  %y = reshard(%x) : ", type, " ", to, "\n  return %y\n}\n"));
    mesh_ = graph.meshes()[0];
    type_ = graph.value(0).type;
    return {ClosedSharding(mesh_, graph.value(0)), ClosedSharding(mesh_, graph.value(1))};
  }
  std::vector<std::string> Chain(std::string_view type, std::string_view from,
                                 std::string_view to) {
    const std::vector<Sharding> shardings = Parse(type, from, to);
    std::vector<std::string> texts;
    for (const ReshardStep& step : PlanReshard(mesh_, shardings[0], shardings[1])) {
      texts.push_back(StrCat(step.op, " ", ToString(mesh_, step.sharding)));
    }
    return texts;
  }
  std::string Least(std::string_view type, std::string_view from, std::string_view to) {
    const std::vector<Sharding> shardings = Parse(type, from, to);
    return ToString(mesh_, LeastNeeded(type_.shape, shardings[0], shardings[1]));
  }
  int64_t Bytes(std::string_view type, std::string_view from, std::string_view to) {
    const std::vector<Sharding> shardings = Parse(type, from, to);
    return HaloBytes(type_, HaloBase(shardings[0], shardings[1]), shardings[1]);
  }

  graph::Mesh mesh_;
  TensorType type_;
};

TEST_F(HaloTest, BytesAreThoseThatADeviceLacks) {
  // A row of 6 elements.
  EXPECT_EQ(Bytes("f32[8, 6]", "@[x, _]", "@[x window(of=7, low=1), _]"), 6 * 4);
  EXPECT_EQ(Bytes("f32[8, 6]", "@[x, y]", "@[x window(of=7, low=1), y]"), 3 * 4);
  EXPECT_EQ(Bytes("f32[8, 6]", "@[x, _]", "@[x window(of=8, low=-1, size=3), _]"), 2 * 6 * 4);
  EXPECT_EQ(Bytes("f32[16]", "@[x]", "@[x window(of=8, stride=2)]"), 0);
}

// The second exchange brings the corners: of 4 + 2 rows.
TEST_F(HaloTest, TwoDimensionsTakeTwoSteps) {
  EXPECT_THAT(Chain("f32[16, 16]", "@[x, y]",
                    "@[x window(of=16, low=-1, size=3), y window(of=16, low=-1, size=3)]"),
              ElementsAre("halo_exchange @[x window(of=16, low=-1, size=3), y]",
                          "halo_exchange @[x window(of=16, low=-1, size=3), "
                          "y window(of=16, low=-1, size=3)]"));
  EXPECT_EQ(Bytes("f32[16, 16]", "@[x, y]",
                  "@[x window(of=16, low=-1, size=3), y window(of=16, low=-1, size=3)]"),
            (2 * 8 + 6) * 4);
}

TEST_F(HaloTest, OtherShardingsGoToTheBaseFirst) {
  EXPECT_THAT(Chain("f32[8, 8]", "@[_, x]", "@[x window(of=7, low=1), _]"),
              ElementsAre("all_to_all @[x, _]", "halo_exchange @[x window(of=7, low=1), _]"));
  EXPECT_THAT(Chain("f32[8, 8]", "@[x, _] partial(sum, y)", "@[x window(of=7, low=1), _]"),
              ElementsAre("all_reduce @[x, _]", "halo_exchange @[x window(of=7, low=1), _]"));
}

TEST_F(HaloTest, WhatHoldsAllWindowsStaysAsItIs) {
  EXPECT_EQ(Least("f32[8, 8]", "@[_, y]", "@[x window(of=7, low=1), y]"), "@[_, y]");
  EXPECT_EQ(Least("f32[16]", "@[x]", "@[x window(of=8, stride=2)]"), "@[x]");
  EXPECT_EQ(Least("f32[8]", "@[x]", "@[x window(of=7, low=1)]"), "@[x window(of=7, low=1)]");
  // One of two dimensions.
  EXPECT_EQ(Least("f32[8, 16]", "@[y, x]", "@[y window(of=7, low=1), x window(of=8, stride=2)]"),
            "@[y window(of=7, low=1), x]");
  // Not where it has to be redistributed for another dimension.
  EXPECT_EQ(Least("f32[8, 8]", "@[_, x]", "@[x window(of=7, low=1), _]"),
            "@[x window(of=7, low=1), _]");
}

TEST_F(HaloTest, LargestPart) {
  const std::vector<Sharding> shardings =
      Parse("f32[8]", "@[x]", "@[x window(of=8, low=-1, size=3)]");
  EXPECT_EQ(LargestPart(shardings[0].dims[0], 8), 2);
  EXPECT_EQ(LargestPart(shardings[1].dims[0], 8), 4);
}

}  // namespace
}  // namespace penstock::planner
