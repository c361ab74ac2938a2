#include "planner/sharding/select_mesh.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

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

TEST_F(SelectMeshTest, TwoMeshesAreRefusedWithPlaceAndNames) {
  const std::string message =
      "g.pst:5:3: this statement lies on mesh 'n', those before it on 'm' (g.pst:4:3); a program "
      "compiles for one mesh: expected 'on m', and stages for devices of its own\n"
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

}  // namespace
}  // namespace penstock::planner
