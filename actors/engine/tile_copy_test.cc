#include "actors/engine/tile_copy.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Numbered(size_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(TileCopyTest, CopiesTheTileOfTheMicrobatch) {
  const graph::TileDesc tile = {DType::kI32, {2, 3}, {4, 6}, {0, 3}, {2, 0}};
  ASSERT_TRUE(CheckTile(tile, 2).ok());
  const TileCopy copy(tile);
  std::vector<int32_t> global = Numbered(24);
  std::vector<int32_t> local(6);
  copy.FromGlobal(global.data(), local.data(), 1);
  EXPECT_THAT(local, ElementsAre(15, 16, 17, 21, 22, 23));
  std::fill(global.begin(), global.end(), 0);
  copy.ToGlobal(local.data(), global.data(), 0);
  EXPECT_EQ(global[3], 15);
  EXPECT_EQ(global[11], 23);
  EXPECT_EQ(std::accumulate(global.begin(), global.end(), 0), 15 + 16 + 17 + 21 + 22 + 23);
}

TEST(TileCopyTest, TakesWholeDimensionsInOneRun) {
  const TileCopy copy({DType::kI32, {2, 4, 5}, {6, 4, 5}, {1, 0, 0}, {2, 0, 0}});
  int runs = 0;
  copy.ForEachRun(1, [&](int64_t global_index, int64_t tile_index, int64_t count) {
    ++runs;
    EXPECT_EQ(global_index, 60);
    EXPECT_EQ(tile_index, 0);
    EXPECT_EQ(count, 40);
  });
  EXPECT_EQ(runs, 1);
}

// Whatever pieces a tile is cut into, bytes that are no whole elements too.
TEST(TileCopyTest, RangesMakeUpTheTile) {
  for (const graph::TileDesc& tile :
       {graph::TileDesc{DType::kI32, {2, 3}, {4, 6}, {0, 3}, {2, 0}},
        graph::TileDesc{DType::kI32, {2, 4, 5}, {6, 4, 5}, {1, 0, 0}, {2, 0, 0}},
        graph::TileDesc{DType::kI32, {2, 1, 3}, {3, 2, 4}, {0, 1, 1}, {1, 0, 0}},
        graph::TileDesc{DType::kI32, {}, {}, {}, {}}}) {
    const TileCopy copy(tile);
    const auto num_bytes = static_cast<int64_t>(tile.num_bytes());
    const std::vector<int32_t> global = Numbered(120);
    std::vector<std::byte> whole(tile.num_bytes());
    copy.FromGlobal(global.data(), whole.data(), 1);
    std::vector<int32_t> expected(120, -1);
    copy.ToGlobal(whole.data(), expected.data(), 1);
    for (int64_t size = 1; size <= num_bytes; ++size) {
      std::vector<std::byte> pieces(tile.num_bytes());
      std::vector<int32_t> put(120, -1);
      for (int64_t offset = 0; offset < num_bytes; offset += size) {
        const int64_t count = std::min(size, num_bytes - offset);
        copy.RangeFromGlobal(global.data(), 1, offset, count, pieces.data() + offset);
        copy.RangeToGlobal(pieces.data() + offset, 1, offset, count, put.data());
      }
      EXPECT_EQ(pieces, whole) << size;
      EXPECT_EQ(put, expected) << size;
    }
  }
}

TEST(TileCopyTest, ScalarsAndEmptyTiles) {
  const TileCopy scalar({DType::kF64, {}, {}, {}, {}});
  const double value = 4;
  double copy = 0;
  scalar.FromGlobal(&value, &copy, 0);
  EXPECT_EQ(copy, 4);
  for (const Shape& shape : {Shape{0, 2}, Shape{2, 0}}) {
    const TileCopy empty({DType::kI32, shape, {2, 2}, {0, 0}, {0, 0}});
    empty.ForEachRun(0, [](int64_t, int64_t, int64_t) { FAIL(); });
    empty.RangeFromGlobal(&value, 0, 0, 0, &copy);
    EXPECT_EQ(copy, 4);
  }
}

TEST(TileCopyTest, RefusesTilesOutsideTheTensor) {
  EXPECT_TRUE(CheckTile({DType::kI32, {2}, {4}, {}, {}}, 1).ok());
  EXPECT_TRUE(CheckTile({DType::kI32, {2}, {4}, {0}, {2}}, 2).ok());
  EXPECT_FALSE(CheckTile({DType::kI32, {2}, {4}, {0}, {2}}, 3).ok());
  EXPECT_FALSE(CheckTile({DType::kI32, {2}, {4}, {3}, {0}}, 1).ok());
  EXPECT_FALSE(CheckTile({DType::kI32, {2}, {4}, {-1}, {0}}, 1).ok());
  EXPECT_FALSE(CheckTile({DType::kI32, {2}, {4, 4}, {0}, {0}}, 1).ok());
  EXPECT_FALSE(CheckTile({DType::kI32, {2, 2}, {4, 4}, {0}, {0}}, 1).ok());
  EXPECT_FALSE(CheckTile({DType::kI32, {-2}, {4}, {0}, {0}}, 1).ok());
  EXPECT_FALSE(CheckTile({DType::kI32, {2}, {4}, {0}, {INT64_MAX}}, 3).ok());
}

}  // namespace
}  // namespace penstock::actors
