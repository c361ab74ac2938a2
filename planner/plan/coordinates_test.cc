#include "planner/plan/coordinates.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

const graph::Mesh kMesh = {"m", {{"mb", 2, true}, {"a", 4, false}}};

graph::Sharding Over(const std::vector<int>& axes) {
  graph::Sharding sharding = graph::Sharding::Replicated(static_cast<int>(axes.size()));
  for (size_t d = 0; d < axes.size(); ++d) {
    if (axes[d] >= 0) sharding.dims[d].axes = {graph::WholeAxis(kMesh, axes[d])};
  }
  return sharding;
}

TEST(TileOf, TilesAreUnevenAndMicrobatchesAreNot) {
  const absl::StatusOr<graph::TileDesc> tile =
      TileOf(kMesh, Over({0, 1}), {DType::kF32, {10, 5}}, 3);
  ASSERT_TRUE(tile.ok()) << tile.status();
  EXPECT_THAT(tile->shape, ElementsAre(5, 1));
  EXPECT_THAT(tile->offset, ElementsAre(0, 4));
  EXPECT_THAT(tile->microbatch_stride, ElementsAre(5, 0));
  EXPECT_THAT(tile->global, ElementsAre(10, 5));
}

TEST(TileOf, RefusesMicrobatchesOfDifferentSizes) {
  const absl::StatusOr<graph::TileDesc> tile =
      TileOf(kMesh, Over({0, -1}), {DType::kF32, {5, 5}}, 0);
  EXPECT_EQ(std::string(tile.status().message()),
            "dimension 0 of f32[5, 5] with @[mb, _]: the 2 micro-batches do not divide it evenly");
}

TEST(ContiguousOffset, IsOfPartsThatAreContiguous) {
  const auto tile = [](Shape shape, Shape offset) {
    graph::TileDesc desc;
    desc.dtype = DType::kF32;
    desc.shape = std::move(shape);
    desc.offset = std::move(offset);
    return desc;
  };
  const graph::TileDesc whole = tile({8, 6}, {16, 0});
  EXPECT_EQ(ContiguousOffset(whole, tile({2, 6}, {20, 0})), 4u * 6 * 4);
  EXPECT_EQ(ContiguousOffset(whole, tile({1, 3}, {17, 3})), (6u + 3) * 4);
  EXPECT_EQ(ContiguousOffset(whole, tile({2, 3}, {20, 0})), std::nullopt);
  EXPECT_EQ(ContiguousOffset(whole, tile({0, 6}, {24, 0})), 0u);
  EXPECT_EQ(ContiguousOffset(whole, whole), 0u);
}

TEST(GroupDevices, JoinsWhatDiffersInTheAxesAlone) {
  const graph::Mesh mesh = {"m", {{"mb", 2, true}, {"a", 2, false}, {"b", 3, false}}};
  const auto whole = [&](int axis) { return graph::WholeAxis(mesh, axis); };
  EXPECT_THAT(GroupDevices(mesh, {whole(1)}),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(GroupDevices(mesh, {whole(2)}),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  // Ranks are in the order of the axes given: major first.
  EXPECT_THAT(GroupDevices(mesh, {whole(2), whole(1)}), ElementsAre(ElementsAre(0, 3, 1, 4, 2, 5)));
  // Micro-batches are not devices.
  EXPECT_EQ(GroupDevices(mesh, {whole(0)}).size(), 6u);
}

TEST(GroupDevices, TakesPartsOfAxes) {
  const graph::Mesh mesh = {"m", {{"a", 4, false}}};
  EXPECT_THAT(GroupDevices(mesh, {{0, 2, 2}}), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(GroupDevices(mesh, {{0, 1, 2}}), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

}  // namespace
}  // namespace penstock::planner
