#include "planner/draw/layout.h"

#include <cmath>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

namespace penstock::planner {
namespace {

DrawnGraph Make(const std::vector<DrawnColumn>& columns,
                const std::vector<std::pair<int, int>>& edges) {
  DrawnGraph graph;
  for (const DrawnColumn column : columns) {
    graph.boxes.emplace_back();
    graph.boxes.back().column = column;
  }
  for (const auto& [from, to] : edges) {
    graph.edges.emplace_back();
    graph.edges.back().from = from;
    graph.edges.back().to = to;
    graph.edges.back().is_loop = from >= to;
  }
  return graph;
}

std::vector<int> Levels(const Layout& layout) {
  std::vector<int> levels;
  for (const BoxPosition& box : layout.boxes) levels.push_back(box.level);
  return levels;
}

constexpr DrawnColumn kF = DrawnColumn::kForward;
constexpr DrawnColumn kB = DrawnColumn::kBackward;
constexpr DrawnColumn kW = DrawnColumn::kWeightBackward;
constexpr DrawnColumn kU = DrawnColumn::kUpdate;

TEST(LayoutTest, LevelsAreLongestPaths) {
  const Layout layout = LayOut(Make({kF, kF, kF, kF}, {{0, 1}, {1, 2}, {0, 3}, {2, 3}, {2, 1}}));
  EXPECT_THAT(Levels(layout), ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(layout.num_levels, 4);
}

// a -> b -> c, backward g -> h, the gradient of a weight beside h and an update.
TEST(LayoutTest, BackwardGoesUpBesideForward) {
  const Layout layout = LayOut(
      Make({kF, kF, kF, kB, kB, kW, kU}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {1, 4}, {4, 5}, {5, 6}}));
  EXPECT_THAT(Levels(layout), ::testing::ElementsAre(0, 1, 2, 2, 1, 1, 0));
  for (int column = 1; column < kNumDrawnColumns; ++column) {
    EXPECT_GE(layout.column_begin[column], layout.column_end[column - 1]);
  }
  for (size_t b = 3; b < layout.boxes.size(); ++b) {
    EXPECT_GT(layout.boxes[b].slot, layout.column_end[0]) << b;
  }
}

// a, b over c, d, where a goes to d and b to c: one of the two rows is turned round.
TEST(LayoutTest, EdgesDoNotCrossWhereTheyNeedNot) {
  const Layout layout = LayOut(Make({kF, kF, kF, kF}, {{0, 3}, {1, 2}}));
  EXPECT_EQ(layout.boxes[0].slot < layout.boxes[1].slot,
            layout.boxes[3].slot < layout.boxes[2].slot);
}

TEST(LayoutTest, BoxesOfARowDoNotOverlap) {
  std::vector<DrawnColumn> columns(9, kF);
  std::vector<std::pair<int, int>> edges;
  for (int b = 1; b < 9; ++b) edges.emplace_back(0, b);
  const Layout layout = LayOut(Make(columns, edges));
  for (size_t a = 1; a < 9; ++a) {
    for (size_t b = a + 1; b < 9; ++b) {
      EXPECT_GE(std::abs(layout.boxes[a].slot - layout.boxes[b].slot), 1 - 1e-9);
    }
  }
  EXPECT_DOUBLE_EQ(layout.num_slots, 8);
}

}  // namespace
}  // namespace penstock::planner
