#include "actors/cluster/write_shares.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A vector of `parts` tiles of one element, part p on the devices of holders[p].
planner::StatePlan StateOf(const std::string& name,
                           const std::vector<std::vector<uint32_t>>& holders, int64_t size = 1) {
  planner::StatePlan state;
  state.name = name;
  const auto parts = static_cast<int64_t>(holders.size());
  state.type = {DType::kF32, {parts * size}};
  for (int64_t part = 0; part < parts; ++part) {
    for (const uint32_t device : holders[static_cast<size_t>(part)]) {
      state.placements.push_back(
          {device, 0, {DType::kF32, {size}, {parts * size}, {part * size}, {0}}});
    }
  }
  return state;
}

// Two processes of two devices each.
const std::vector<DeviceRange> kDevices = {{0, 2}, {2, 2}};

TEST(WriteSharesTest, WhatAllHaveIsSpread) {
  const auto shares = WriteShares({StateOf("a", {{0, 1, 2, 3}}), StateOf("b", {{0, 1, 2, 3}}),
                                   StateOf("c", {{0, 1, 2, 3}}, 2), StateOf("d", {{0, 2}})},
                                  kDevices);
  EXPECT_THAT(shares[0], ElementsAre(KeptTileId{0, 0}, KeptTileId{2, 0}));
  EXPECT_THAT(shares[1], ElementsAre(KeptTileId{1, 0}, KeptTileId{3, 0}));
}

TEST(WriteSharesTest, EveryTileIsWrittenOnceByOneThatHasIt) {
  const auto shares = WriteShares({StateOf("a", {{0}, {1}, {2}, {3}})}, kDevices);
  EXPECT_THAT(shares[0], ElementsAre(KeptTileId{0, 0}, KeptTileId{0, 1}));
  EXPECT_THAT(shares[1], ElementsAre(KeptTileId{0, 0}, KeptTileId{0, 1}));
}

TEST(WriteSharesTest, AStateGoesToAProcessThatHasAllOfIt) {
  // Tensor parallelism inside each process, replicas between them.
  const auto shares =
      WriteShares({StateOf("a", {{0, 2}, {1, 3}}), StateOf("b", {{0, 2}, {1, 3}})}, kDevices);
  EXPECT_THAT(shares[0], ElementsAre(KeptTileId{0, 0}, KeptTileId{0, 1}));
  EXPECT_THAT(shares[1], ElementsAre(KeptTileId{1, 0}, KeptTileId{1, 1}));
  // The first process has the first half alone.
  const auto uneven = WriteShares({StateOf("a", {{0, 2}, {3}})}, kDevices);
  EXPECT_THAT(uneven[0], IsEmpty());
  EXPECT_THAT(uneven[1], ElementsAre(KeptTileId{0, 0}, KeptTileId{0, 1}));
}

// Two axes split two dimensions: the tiles are numbered by device, not by place.
TEST(WriteSharesTest, SharesAreInTheOrderOfTheirNumbers) {
  planner::StatePlan state;
  state.name = "a";
  state.type = {DType::kF32, {2, 2}};
  uint32_t device = 0;
  for (const auto& [row, column] :
       {std::pair(0, 0), std::pair(1, 0), std::pair(0, 1), std::pair(1, 1)}) {
    state.placements.push_back({device++, 0, {DType::kF32, {1, 1}, {2, 2}, {row, column}, {0, 0}}});
  }
  const auto whole = WriteShares({state}, {{0, 4}});
  EXPECT_THAT(whole[0],
              ElementsAre(KeptTileId{0, 0}, KeptTileId{0, 1}, KeptTileId{0, 2}, KeptTileId{0, 3}));
  state.placements.push_back({4, 0, {DType::kF32, {1, 1}, {2, 2}, {0, 0}, {0, 0}}});
  state.placements[0].device = 4;
  state.placements[0].tile.offset = {0, 0};
  const auto shares = WriteShares({state}, {{1, 3}, {4, 1}});
  EXPECT_THAT(shares[0], ElementsAre(KeptTileId{0, 0}, KeptTileId{0, 1}, KeptTileId{0, 2}));
  EXPECT_THAT(shares[1], ElementsAre(KeptTileId{0, 0}));
}

}  // namespace
}  // namespace penstock::actors
