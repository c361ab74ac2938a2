#include "actors/session/state_tiles.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Halves of a vector, on devices 0 to 3: the first, the second, the first, the second.
TEST(StateTilesTest, ReplicasAreOneTile) {
  planner::StatePlan state;
  state.type = {DType::kF32, {8}};
  for (uint32_t device = 0; device < 4; ++device) {
    state.placements.push_back({device, 0, {DType::kF32, {4}, {8}, {4 * (device % 2)}, {0}}});
  }
  EXPECT_THAT(StateTiles(state, 0, 4), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(StateTiles(state, 1, 2), ElementsAre(ElementsAre(1), ElementsAre(2)));
  EXPECT_THAT(StateTiles(state, 3, 1), ElementsAre(ElementsAre(3)));
  EXPECT_THAT(StateTiles(state, 4, 1), IsEmpty());
}

}  // namespace
}  // namespace penstock::actors
