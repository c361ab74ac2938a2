#include "actors/session/kept_tiles.h"

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Devices with two floats a register, of which the first state has register 0.
class KeptTilesTest : public ::testing::Test {
 protected:
  // Halves of a vector on devices 0 to 3, the first, the second, the first, the second; and of
  // another all on device 1.
  static planner::Plan HalvesPlan() {
    planner::Plan plan;
    plan.states.resize(2);
    plan.states[0].name = "w";
    plan.states[0].type = {DType::kF32, {4}};
    for (uint32_t device = 0; device < 4; ++device) {
      plan.states[0].placements.push_back(
          {device, 0, {DType::kF32, {2}, {4}, {2 * (device % 2)}, {0}}});
    }
    plan.states[1].name = "v";
    plan.states[1].type = {DType::kF32, {2}};
    plan.states[1].placements.push_back({1, 1, {DType::kF32, {2}, {2}, {0}, {0}}});
    return plan;
  }

  KeptTiles::ReadTile From(int process) {
    return [this, process](const planner::StatePlacement& placement, std::byte* bytes) {
      memcpy(bytes, At(process, placement.device, placement.reg).data(),
             placement.tile.num_bytes());
      return absl::OkStatus();
    };
  }
  // Checks that it works, and returns what it does.
  std::vector<uint32_t> Fill(const KeptTiles& tiles, const planner::Plan& plan,
                             uint32_t first_device, uint32_t num_devices, int process) {
    const auto missing = tiles.Fill(
        plan, first_device, num_devices,
        [this, process](const planner::StatePlacement& placement, const std::byte* bytes) {
          memcpy(At(process, placement.device, placement.reg).data(), bytes,
                 placement.tile.num_bytes());
          return absl::OkStatus();
        });
    EXPECT_TRUE(missing.ok()) << missing.status();
    return missing.value_or(std::vector<uint32_t>());
  }
  std::array<float, 2>& At(int process, uint32_t device, uint32_t reg) {
    return memory_[{process, device, reg}];
  }

  std::map<std::tuple<int, uint32_t, uint32_t>, std::array<float, 2>> memory_;
};

TEST_F(KeptTilesTest, ASessionGoesOnFromTheTilesOfAnother) {
  const planner::Plan plan = HalvesPlan();
  At(0, 0, 0) = {1, 2};
  At(0, 1, 0) = {3, 4};
  At(0, 1, 1) = {5, 6};
  EXPECT_EQ(KeptTiles::BytesOf(plan, {0, 1}, 0, 2), 24u);
  const absl::StatusOr<KeptTiles> kept = KeptTiles::Copy(plan, {0, 1}, 0, 2, From(0));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->num_bytes(), 24u);
  memory_.clear();  // the session has ended
  EXPECT_THAT(Fill(*kept, plan, 0, 2, 1), IsEmpty());
  EXPECT_THAT(At(1, 0, 0), ElementsAre(1, 2));
  EXPECT_THAT(At(1, 1, 0), ElementsAre(3, 4));
  EXPECT_THAT(At(1, 1, 1), ElementsAre(5, 6));
}

// Kept once, put into each place.
TEST_F(KeptTilesTest, ReplicasAreOneTile) {
  const planner::Plan plan = HalvesPlan();
  for (uint32_t device = 0; device < 4; ++device) At(0, device, 0) = {1, 2};
  const absl::StatusOr<KeptTiles> kept = KeptTiles::Copy(plan, {0}, 0, 4, From(0));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->num_bytes(), 16u);
  EXPECT_THAT(Fill(*kept, plan, 0, 4, 1), ElementsAre(1));
  for (uint32_t device = 0; device < 4; ++device) EXPECT_THAT(At(1, device, 0), ElementsAre(1, 2));
}

TEST_F(KeptTilesTest, WhatLiesInAnotherWayIsMissing) {
  const planner::Plan plan = HalvesPlan();
  const absl::StatusOr<KeptTiles> kept = KeptTiles::Copy(plan, {0, 1}, 0, 1, From(0));
  ASSERT_TRUE(kept.ok()) << kept.status();
  // Of w the first half alone, of v nothing.
  EXPECT_THAT(Fill(*kept, plan, 0, 1, 1), IsEmpty());
  EXPECT_THAT(Fill(*kept, plan, 2, 1, 1), IsEmpty());
  EXPECT_THAT(Fill(*kept, plan, 0, 2, 1), ElementsAre(0, 1));
  for (const auto& change : std::vector<std::function<void(planner::StatePlan&)>>{
           [](auto& state) { state.name = "u"; },
           [](auto& state) { state.type.dtype = DType::kI32; },
           [](auto& state) { state.type.shape = {6}; },
           [](auto& state) { state.placements[0].tile.offset = {1}; },
           [](auto& state) { state.placements[0].tile.shape = {1}; }}) {
    planner::Plan other = plan;
    change(other.states[0]);
    EXPECT_THAT(Fill(*kept, other, 0, 1, 1), ElementsAre(0));
  }
}

TEST_F(KeptTilesTest, TilesHaveNumbers) {
  const planner::Plan plan = HalvesPlan();
  At(0, 1, 0) = {3, 4};
  const absl::StatusOr<KeptTiles> kept = KeptTiles::Copy(plan, {1, 0}, 0, 2, From(0));
  ASSERT_TRUE(kept.ok()) << kept.status();
  const KeptTiles::Tile* tile = kept->Find(1, 1);
  ASSERT_NE(tile, nullptr);
  EXPECT_EQ(tile->desc, plan.states[0].placements[1].tile);
  EXPECT_EQ(reinterpret_cast<const float*>(tile->bytes.get())[1], 4);
  EXPECT_EQ(kept->Find(1, 2), nullptr);
  EXPECT_EQ(kept->Find(2, 0), nullptr);
}

}  // namespace
}  // namespace penstock::actors
