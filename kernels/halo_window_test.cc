#include "kernels/halo_window.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::kernels {
namespace {

using ::testing::ElementsAre;

// The window [0, 10) of a vector of which the tile has [3, 6).
HaloWindow WindowOf(const Shape& sizes) {
  KernelSpec spec;
  spec.op = "join_halo";
  spec.attributes = {{"axis", 0}, {"sizes", graph::AttrValue::Ints(sizes)}};
  spec.inputs = {{DType::kF32, {3}, {10}, {3}, {0}}, {DType::kF32, {7}, {7}, {0}, {0}}};
  spec.outputs = {{DType::kF32, {10}, {10}, {0}, {0}}};
  return HaloWindowOf(spec);
}

TEST(HaloWindowTest, RangesLieAroundTheTile) {
  const HaloWindow halo = WindowOf({3, 4});
  EXPECT_TRUE(halo.is_whole);
  EXPECT_THAT(halo.starts, ElementsAre(0, 6));
  EXPECT_EQ(halo.own_size, 3);
  EXPECT_EQ(halo.own_in_window, 3);
  EXPECT_TRUE(WindowOf({1, 2, 0, 4}).is_whole);
}

TEST(HaloWindowTest, RangesThatDoNotFillTheWindowAreNotWhole) {
  EXPECT_FALSE(WindowOf({3, 3}).is_whole);
  EXPECT_FALSE(WindowOf({3, 5}).is_whole);
  EXPECT_FALSE(WindowOf({}).is_whole);
}

TEST(HaloWindowTest, RangesThatOverlapTheTileAreNotWhole) {
  EXPECT_FALSE(WindowOf({4, 6}).is_whole);
  EXPECT_FALSE(WindowOf({10}).is_whole);
}

TEST(HaloWindowTest, NegativeSizesAreNotWhole) {
  EXPECT_FALSE(WindowOf({3, -1, 5}).is_whole);
  EXPECT_FALSE(WindowOf({3, 12, -8}).is_whole);
}

}  // namespace
}  // namespace penstock::kernels
