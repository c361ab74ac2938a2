#include "planner/sharding/select_mesh.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"

#include "planner/opt.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

class SelectMeshTest : public testing::PlannerFixture {};

constexpr std::string_view kOnN = R"(mesh m = [a=2]
mesh n = [b=4]
graph g {
  %x = input : f32[8] @[b] on n
  %y = neg(%x) : f32[8] on n
  return %y
})";

constexpr std::string_view kOnBoth = R"(mesh m = [a=2]
mesh n = [b=4]
graph g {
  %x = input : f32[8] @[a] on m
  %y = neg(%x) : f32[8] @[b] on n
  return %y
})";

TEST_F(SelectMeshTest, AMeshThatNothingLiesOnIsLeftOut) {
  graph::Graph graph = MustParse(kOnN);
  ASSERT_TRUE(SelectMesh(graph).ok());
  ASSERT_EQ(graph.meshes().size(), 1u);
  EXPECT_EQ(graph.meshes()[0].name, "n");
  EXPECT_EQ(ShardingOf(graph, "x"), "@[b]");
  EXPECT_TRUE(graph::VerifyGraph(graph).ok());
}

TEST_F(SelectMeshTest, OneMeshStays) {
  graph::Graph graph = MustParse("mesh m = [a=2]\ngraph g {\n  %x = input : f32[8]\n}");
  ASSERT_TRUE(SelectMesh(graph).ok());
  EXPECT_EQ(graph.meshes().size(), 1u);
}

TEST_F(SelectMeshTest, AFileWithAMeshToSpareCompiles) {
  EXPECT_EQ(Compile(MustParse(kOnN)).devices.size(), 4u);
}

// Stage 0 splits rows over its 4 devices; stage 1 has 2 by 2. What device d of the one has goes to
// device d of the other, and from there only columns are missing.
TEST_F(SelectMeshTest, StagesOnMeshesOfTheSameSizeShareOne) {
  graph::Graph graph = MustParse(R"(mesh m = [mb=2 temporal, dp=4]
mesh n = [mb=2 temporal, rows=2, tp=2]
graph g {
  %x = input : f32[16, 8] @[mb.dp, _] on m stage 0
  %y = neg(%x) : f32[16, 8] @[mb.dp, _] on m stage 0
  %w = parameter : f32[8, 4] @[_, tp] on n stage 1
  %z = matmul(%y, %w) : f32[16, 4] @[mb.rows, tp] on n stage 1
  return %z
})");
  EXPECT_EQ(Compile(graph).devices.size(), 8u);
  ASSERT_TRUE(SelectMesh(graph).ok());
  ASSERT_EQ(graph.meshes().size(), 1u);
  EXPECT_TRUE(graph::VerifyGraph(graph).ok());
  EXPECT_EQ(ShardingOf(graph, "y"), "@[mb.rows.tp, _]");
  EXPECT_EQ(ShardingOf(graph, "z"), "@[mb.rows, tp]");
  graph = Lower(graph);
  EXPECT_THAT(Statements(graph, "all_gather"),
              ::testing::ElementsAre("%y_1 = all_gather(%y) : f32[16, 8] @[mb.rows, _] stage 1"));
}

// Stage 0 has 4 devices, stage 1 has 2: each of these takes two rows of 4 columns from two devices
// of stage 0.
TEST_F(SelectMeshTest, StagesMayHaveDifferentNumbersOfDevices) {
  graph::Graph graph = MustParse(R"(mesh m = [dp=4]
mesh n = [tp=2]
graph g {
  %x = input : f32[4, 8] @[dp, _] on m stage 0
  %y = neg(%x) : f32[4, 8] @[dp, _] on m stage 0
  %z = abs(%y) : f32[4, 8] @[tp, _] on n stage 1
  return %z
})");
  const Plan plan = Compile(graph);
  EXPECT_EQ(plan.devices.size(), 6u);
  EXPECT_THAT(plan.stages[1].devices, ::testing::ElementsAre(4u, 5u));
  ASSERT_EQ(plan.transfers.size(), 4u);
  for (const TransferPlan& transfer : plan.transfers) {
    EXPECT_EQ(transfer.num_bytes, 8 * sizeof(float));
    EXPECT_EQ(transfer.destination, 4 + transfer.source / 2);
  }
  ASSERT_TRUE(SelectMesh(graph).ok());
  EXPECT_EQ(graph.meshes().size(), 2u);
  graph = Lower(graph);
  EXPECT_THAT(Statements(graph, "receive"),
              ::testing::ElementsAre("%y_1 = receive(%y) : f32[4, 8] @[tp, _] on n stage 1"));
}

TEST_F(SelectMeshTest, AStageOnMeshesOfDifferentSizesIsRefusedWithPlaceAndNames) {
  const std::string message =
      "g.pst:5:3: this statement lies on mesh 'n', one before it on 'm' (g.pst:4:3); the "
      "statements of a stage run on the same devices, but of stage 0 some have 2 and some 4; "
      "expected 'on m', or another stage\n"
      "  in: %y = neg(%x) : f32[8] @[b] on n";
  for (const std::string pass : {"decompose", "insert-reshards", "split-sends", "lower-reshards"}) {
    const auto printed = Optimize(kOnBoth, "g.pst", pass, ops_);
    EXPECT_EQ(printed.status().code(), absl::StatusCode::kUnimplemented) << pass;
    EXPECT_EQ(std::string(printed.status().message()), "pass " + pass + ": " + message);
  }
  graph::Graph graph = *graph::ParseGraph(kOnBoth, "g.pst", ops_);
  CompileOptions options;
  options.policies = &policies_;
  options.kernels = kernels::TraitsOf(kernels_, 1);
  EXPECT_EQ(std::string(planner::Compile(ops_, graph, options).status().message()), message);
}

TEST_F(SelectMeshTest, OtherMicrobatchesAreRefusedWithPlaceAndNames) {
  graph::Graph graph = *graph::ParseGraph(R"(mesh m = [a=4]
mesh n = [mb=2 temporal, b=2]
graph g {
  %x = input : f32[8] @[a] on m stage 0
  %y = neg(%x) : f32[8] on n stage 1
  return %y
})",
                                          "g.pst", ops_);
  EXPECT_EQ(std::string(SelectMesh(graph).message()),
            "g.pst:5:3: this statement lies on mesh 'n', one before it on 'm' (g.pst:4:3); meshes "
            "of one program have the same temporal axes: 'm' has none and 'n' has mb=2; expected "
            "'on m', or the same temporal axes\n"
            "  in: %y = neg(%x) : f32[8] on n stage 1");
}

TEST_F(SelectMeshTest, AnAssignmentLiesOnTheMeshOfItsState) {
  graph::Graph graph = *graph::ParseGraph(R"(mesh m = [a=4]
mesh n = [b=2]
graph g {
  %x = input : f32[8] @[a] on m stage 0
  %s = state : f32[8] @[b] on n stage 1
  assign(%s, %x) stage 1
})",
                                          "g.pst", ops_);
  ASSERT_TRUE(SelectMesh(graph).ok());
  EXPECT_EQ(graph.node(2).mesh, 1);
}

}  // namespace
}  // namespace penstock::planner
