#include "planner/cluster/group_shape.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/cluster/presets.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

Cluster FindCluster(std::string_view preset) { return *FindClusterPreset(preset); }

std::vector<int64_t> StridedGroup(int64_t begin, int64_t count, int64_t stride) {
  std::vector<int64_t> devices;
  for (int64_t i = 0; i < count; ++i) devices.push_back(begin + i * stride);
  return devices;
}

TEST(GroupShapeTest, CountsMembersInEachChild) {
  const Cluster cluster = FindCluster("dgx-a100:4");
  const GroupShape shape = ShapeOf(cluster, {9, 0, 1, 8});
  EXPECT_EQ(shape.num_members, 4);
  ASSERT_EQ(shape.levels.size(), 2);
  EXPECT_EQ(shape.levels[0].num_children, 4);
  EXPECT_THAT(shape.levels[0].members_per_child, ElementsAre(1));
  EXPECT_EQ(shape.levels[1].num_children, 2);
  EXPECT_THAT(shape.levels[1].members_per_child, ElementsAre(2));
  EXPECT_FALSE(shape.torus);
}

TEST(GroupShapeTest, StopsAtTheLevelWhereAllMeet) {
  const Cluster cluster = FindCluster("dgx-a100:4");
  EXPECT_EQ(ShapeOf(cluster, {3}).levels.size(), 0);
  EXPECT_EQ(ShapeOf(cluster, StridedGroup(8, 8, 1)).levels.size(), 1);
  EXPECT_EQ(ShapeOf(cluster, {7, 8}).levels.size(), 2);
}

TEST(GroupShapeTest, UnevenGroupsHaveSeveralNumbers) {
  const Cluster cluster = FindCluster("dgx-a100:4");
  const GroupShape shape = ShapeOf(cluster, {0, 1, 2, 8, 16, 17, 18});
  EXPECT_EQ(shape.levels[1].num_children, 3);
  EXPECT_THAT(shape.levels[1].members_per_child, ElementsAre(1, 3));
}

TEST(GroupShapeTest, GroupsOfTheSameFormHaveTheSameShape) {
  const Cluster cluster = FindCluster("dgx-a100:4");
  EXPECT_EQ(ShapeOf(cluster, StridedGroup(0, 4, 8)), ShapeOf(cluster, StridedGroup(5, 4, 8)));
  EXPECT_FALSE(ShapeOf(cluster, StridedGroup(0, 4, 8)) == ShapeOf(cluster, StridedGroup(0, 4, 1)));
}

TEST(GroupShapeTest, AWholeTorusWraps) {
  const Cluster cluster = FindCluster("tpu-v4:4x4x8");
  const GroupShape shape = ShapeOf(cluster, StridedGroup(0, 128, 1));
  ASSERT_TRUE(shape.torus);
  EXPECT_TRUE(shape.torus->is_box);
  ASSERT_EQ(shape.torus->dimensions.size(), 3);
  EXPECT_EQ(shape.torus->dimensions[2], (TorusShape::Dimension{8, 1, true}));
  EXPECT_EQ(shape.torus->diameter, 2 + 2 + 4);
  // Half of a ring's traffic goes each way: 128 * 8 / 8 pairs on each link of the longest rings.
  EXPECT_DOUBLE_EQ(shape.torus->direct_load, 128);
}

TEST(GroupShapeTest, PartsOfATorusAreLinesOrStridedRings) {
  const Cluster cluster = FindCluster("tpu-v4:4x4x8");
  // Half of a ring, which does not wrap; its middle link carries 2 * 2 pairs.
  const GroupShape line = ShapeOf(cluster, StridedGroup(2, 4, 1));
  EXPECT_THAT(line.torus->dimensions, ElementsAre(TorusShape::Dimension{4, 1, false}));
  EXPECT_DOUBLE_EQ(line.torus->direct_load, 4);
  EXPECT_EQ(line.torus->diameter, 3);
  EXPECT_EQ(line.torus->ring_links, 3);
  // The same across the end of the ring.
  EXPECT_THAT(ShapeOf(cluster, {6, 7, 0, 1}).torus->dimensions,
              ElementsAre(TorusShape::Dimension{4, 1, false}));
  // Every other chip of a ring.
  const GroupShape strided = ShapeOf(cluster, StridedGroup(0, 4, 2));
  EXPECT_THAT(strided.torus->dimensions, ElementsAre(TorusShape::Dimension{4, 2, true}));
  // Along the first dimension.
  EXPECT_THAT(ShapeOf(cluster, StridedGroup(0, 4, 32)).torus->dimensions,
              ElementsAre(TorusShape::Dimension{4, 1, true}));
  // Three corners of a square are no box.
  EXPECT_FALSE(ShapeOf(cluster, {0, 1, 8}).torus->is_box);
}

TEST(GroupShapeTest, TheEdgesOfARingMayShareLinks) {
  const Cluster cluster = FindCluster("tpu-v4:1x1x8");
  EXPECT_DOUBLE_EQ(ShapeOf(cluster, StridedGroup(0, 8, 1)).torus->ring_load, 1);
  // 0 -> 1 -> 2 -> 0: the way back has the links to itself.
  EXPECT_DOUBLE_EQ(ShapeOf(cluster, {0, 1, 2}).torus->ring_load, 1);
  // In a square of 4: from (0, 1) to (0, 3), and from (1, 2) by (0, 2) to (0, 0), the ring passes
  // the link from (0, 2) to (0, 3) twice.
  EXPECT_DOUBLE_EQ(ShapeOf(FindCluster("tpu-v4:1x4x4"), {0, 1, 3, 6}).torus->ring_load, 2);
}

TEST(GroupShapeTest, CountsGroupsThatLeaveAChild) {
  const Cluster cluster = FindCluster("dgx-a100:2");
  // 8 data-parallel groups with a member in each node.
  std::vector<std::vector<int64_t>> groups;
  for (int64_t i = 0; i < 8; ++i) groups.push_back({i, i + 8});
  EXPECT_THAT(CountGroupsAtOnce(cluster, groups), ElementsAre(1, 8));
  // 2 tensor-parallel groups inside the nodes: none leaves its node.
  groups = {StridedGroup(0, 8, 1), StridedGroup(8, 8, 1)};
  EXPECT_THAT(CountGroupsAtOnce(cluster, groups), ElementsAre(1, 1));
  // 2 groups of 4 in each node.
  groups = {{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}};
  EXPECT_THAT(CountGroupsAtOnce(cluster, groups), ElementsAre(1, 2));
}

}  // namespace
}  // namespace penstock::planner
