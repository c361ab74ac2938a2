#include "actors/cluster/state_moves.h"

#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Moves = std::vector<StateMove>;

// Of processes of one host.
absl::StatusOr<Moves> Plan(const std::vector<ProcessTiles>& held,
                           const std::vector<ProcessTiles>& needed) {
  return StateMovePlanner(std::vector<std::string>(8, "host")).Plan(held, needed, 4);
}

TEST(StateMovePlannerTest, TakesWhatIsNearAndTheRestOnce) {
  const auto moves =
      Plan({{0, {{{0, 0}, {2, 4}}}}, {1, {{{0, 4}, {2, 4}}}}, {2, {{{0, 4}, {2, 4}}}}},
           {{0, {{{0, 0}, {1, 8}}}}});
  ASSERT_TRUE(moves.ok()) << moves.status();
  EXPECT_THAT(*moves, ElementsAre(StateMove{0, 0, 0, {{0, 0}, {1, 4}}},
                                  StateMove{1, 0, 0, {{0, 4}, {1, 4}}}));
}

TEST(StateMovePlannerTest, PrefersTheSameHostThenWhoSendsLeast) {
  const Box whole{{0}, {8}};
  StateMovePlanner planner({"a", "a", "b", "b", "c"});
  const std::vector<ProcessTiles> held = {{0, {whole}}, {1, {whole}}, {2, {whole}}};
  const auto from = [&](uint32_t to) {
    const auto moves = planner.Plan(held, {{to, {whole}}}, 4);
    EXPECT_TRUE(moves.ok() && moves->size() == 1) << moves.status();
    return moves->front().from;
  };
  EXPECT_EQ(from(1), 1u);
  EXPECT_EQ(from(3), 2u);
  EXPECT_EQ(from(4), 0u);
  EXPECT_EQ(from(4), 1u);
  EXPECT_EQ(from(4), 0u);
  EXPECT_EQ(from(3), 2u);
}

TEST(StateMovePlannerTest, AScalarIsOneBox) {
  const auto moves = Plan({{3, {{{}, {}}}}}, {{0, {{{}, {}}}}, {3, {{{}, {}}}}});
  ASSERT_TRUE(moves.ok()) << moves.status();
  EXPECT_THAT(*moves, ElementsAre(StateMove{3, 0, 0, {{}, {}}}, StateMove{3, 0, 3, {{}, {}}}));
}

TEST(StateMovePlannerTest, ATileWithoutElementsNeedsNothing) {
  const auto moves = Plan({}, {{0, {{{4}, {0}}}}});
  ASSERT_TRUE(moves.ok()) << moves.status();
  EXPECT_THAT(*moves, IsEmpty());
}

TEST(StateMovePlannerTest, SaysThatAnElementIsNotKept) {
  EXPECT_EQ(Plan({{0, {{{0}, {3}}, {{4}, {4}}}}}, {{1, {{{0}, {8}}}}}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(BoxInTileTest, IsRelativeToTheTile) {
  const graph::TileDesc tile{DType::kF32, {4, 6}, {8, 12}, {4, 6}, {}};
  const auto part = BoxInTile({{5, 8}, {2, 3}}, tile);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(*part, (graph::TileDesc{DType::kF32, {2, 3}, {4, 6}, {1, 2}, {}}));
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  for (const Box& box : std::vector<Box>{{{3, 6}, {2, 2}},
                                         {{4, 6}, {5, 2}},
                                         {{kFar, 6}, {1, 1}},
                                         {{4, 6}, {kFar, 1}},
                                         {{4, 6}, {-1, 1}},
                                         {{-kFar, 6}, {1, 1}},
                                         {{4}, {1}},
                                         {{4, 6}, {1}}}) {
    EXPECT_FALSE(BoxInTile(box, tile).ok())
        << penstock::ToString(box.offset) << penstock::ToString(box.shape);
  }
}

// Cuts a tensor into tiles of any sizes, and gives each to one process or more.
class RandomLayouts {
 public:
  explicit RandomLayouts(unsigned seed) : random_(seed) {}

  int Below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }

  std::vector<ProcessTiles> Make(const Shape& shape, bool is_complete) {
    std::vector<Box> tiles = {{Shape(shape.size(), 0), shape}};
    for (int cut = Below(6); cut > 0; --cut) {
      const auto which = static_cast<size_t>(Below(static_cast<int>(tiles.size())));
      if (shape.empty()) break;
      const auto dim = static_cast<size_t>(Below(static_cast<int>(shape.size())));
      Box& first = tiles[which];
      if (first.shape[dim] < 2) continue;
      const int64_t at = 1 + Below(static_cast<int>(first.shape[dim]) - 1);
      Box second = first;
      second.offset[dim] += at;
      second.shape[dim] -= at;
      first.shape[dim] = at;
      tiles.push_back(second);
    }
    std::vector<ProcessTiles> processes;
    for (uint32_t process = 0; process < 4; ++process) processes.push_back({process, {}});
    for (const Box& tile : tiles) {
      for (int copies = is_complete ? 1 + Below(2) : Below(3); copies > 0; --copies) {
        processes[static_cast<size_t>(Below(4))].tiles.push_back(tile);
      }
    }
    return processes;
  }

 private:
  std::mt19937 random_;
};

// Calls `use` with each element of a box.
template <typename Use>
void ForEach(const Box& box, Use use) {
  if (NumElements(box.shape) == 0) return;
  Shape at = box.offset;
  while (true) {
    use(at);
    int dim = static_cast<int>(at.size()) - 1;
    for (; dim >= 0; --dim) {
      const auto d = static_cast<size_t>(dim);
      if (++at[d] < box.offset[d] + box.shape[d]) break;
      at[d] = box.offset[d];
    }
    if (dim < 0) return;
  }
}

bool Contains(const Box& box, const Shape& at) {
  for (size_t dim = 0; dim < at.size(); ++dim) {
    if (at[dim] < box.offset[dim] || at[dim] >= box.offset[dim] + box.shape[dim]) return false;
  }
  return true;
}

TEST(StateMovePlannerTest, MovesEveryElementOnceBetweenAnyLayouts) {
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    RandomLayouts random(seed);
    Shape shape;
    for (int rank = random.Below(4); rank > 0; --rank) shape.push_back(1 + random.Below(5));
    const std::vector<ProcessTiles> held = random.Make(shape, true);
    // Tiles of two ways to cut, which overlap.
    std::vector<ProcessTiles> needed = random.Make(shape, false);
    const std::vector<ProcessTiles> more = random.Make(shape, false);
    for (size_t i = 0; i < needed.size(); ++i) {
      needed[i].tiles.insert(needed[i].tiles.end(), more[i].tiles.begin(), more[i].tiles.end());
    }
    const absl::StatusOr<Moves> moves = Plan(held, needed);
    ASSERT_TRUE(moves.ok()) << moves.status();
    std::map<std::pair<uint32_t, Shape>, int> times_moved;
    for (const StateMove& move : *moves) {
      const Box& source = held[move.from].tiles[move.tile];
      ForEach(move.box, [&](const Shape& at) {
        ASSERT_TRUE(Contains(source, at));
        ++times_moved[{move.to, at}];
        // Nothing travels that is there.
        for (const Box& own : held[move.to].tiles) {
          EXPECT_TRUE(move.from == move.to || !Contains(own, at));
        }
      });
      for (const Box& tile : needed[move.to].tiles) {
        int inside = 0;
        ForEach(move.box, [&](const Shape& at) { inside += Contains(tile, at) ? 1 : 0; });
        EXPECT_TRUE(inside == 0 || inside == NumElements(move.box.shape));
      }
    }
    std::map<std::pair<uint32_t, Shape>, int> expected;
    for (const ProcessTiles& process : needed) {
      for (const Box& tile : process.tiles) {
        ForEach(tile, [&](const Shape& at) { expected[{process.process, at}] = 1; });
      }
    }
    EXPECT_EQ(times_moved, expected);
  }
}

}  // namespace
}  // namespace penstock::actors
