#include "planner/sharding/execution_sharding.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;

class ExecutionShardingTest : public testing::PlannerFixture {
 protected:
  std::string Choose(std::string_view text) const {
    return ChooseForLastNode(text, [](const NodeToExecute& node) {
      return ChooseExecution(node.mesh, node.rule, node.operand_types, node.operands, node.results);
    });
  }
};

TEST_F(ExecutionShardingTest, HeaderExample) {
  EXPECT_EQ(Choose(R"(mesh m = [dp=2, tp=2]
graph g {
  %x = input : f32[8, 16] @[dp, tp]
  %w = input : f32[16, 4] @[tp, _]
  %y = matmul(%x, %w) : f32[8, 4] @[dp, _]
  return %y
})"),
            "@[dp, tp], @[tp, _] -> @[dp, _] partial(sum, tp)");
}

TEST_F(ExecutionShardingTest, AReductionFactorFollowsItsLargestOperand) {
  EXPECT_EQ(Choose(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 16] @[_, a]
  %w = input : f32[16, 32] @[b, _]
  %y = matmul(%x, %w) : f32[8, 32]
  return %y
})"),
            "@[_, b], @[b, _] -> @[_, _] partial(sum, b)");
}

TEST_F(ExecutionShardingTest, NoAxisServesTwice) {
  // The result splits m over a, so k cannot use it.
  EXPECT_EQ(Choose(R"(mesh m = [a=2]
graph g {
  %x = input : f32[8, 16] @[_, a]
  %w = input : f32[16, 4] @[a, _]
  %y = matmul(%x, %w) : f32[8, 4] @[a, _]
  return %y
})"),
            "@[a, _], @[_, _] -> @[a, _]");
}

TEST_F(ExecutionShardingTest, ARollIsSplitIntoWholePartsOrNot) {
  const auto roll = [&](std::string_view sharding, int shift) {
    return Choose(StrCat("mesh m = [a=2, b=2]\ngraph g {\n  %x = input : f32[8, 4] ", sharding,
                         "\n  %y = roll(%x) {axis=0, shift=", shift, "} : f32[8, 4] ", sharding,
                         "\n  return %y\n}\n"));
  };
  EXPECT_EQ(roll("@[a, b]", 4), "@[a, b] -> @[a, b]");
  EXPECT_EQ(roll("@[a, b]", 2), "@[_, b] -> @[_, b]");
  EXPECT_EQ(roll("@[a.b, _]", 2), "@[a.b, _] -> @[a.b, _]");
  // What splits a part stays behind the parts.
  EXPECT_EQ(roll("@[a.b, _]", -4), "@[a.b, _] -> @[a.b, _]");
  EXPECT_EQ(roll("@[b, a]", 8), "@[b, a] -> @[b, a]");
}

TEST_F(ExecutionShardingTest, FactorsThatNeedReplicationStayWhole) {
  EXPECT_EQ(Choose(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 16] @[a, b]
  %y = softmax(%x) : f32[8, 16] @[a, b]
  return %y
})"),
            "@[a, _] -> @[a, _]");
}

TEST_F(ExecutionShardingTest, MaximaLeavePartialMaxima) {
  EXPECT_EQ(Choose(R"(mesh m = [a=2, mb=2 temporal]
graph g {
  %x = input : f32[8, 16] @[mb.a, _]
  %y = reduce_max(%x) {axes=[0]} : f32[16]
  return %y
})"),
            "@[mb.a, _] -> @[_] partial(max, a, mb)");
}

TEST_F(ExecutionShardingTest, AFactorOfSomeResultsIsASumInTheOthers) {
  // The query sequence is a dimension of dq and summed over in dk and dv.
  EXPECT_EQ(Choose(R"(mesh m = [a=2]
graph g {
  %q = input : f32[1, 1, 4, 2] @[_, _, a, _]
  %k = input : f32[1, 1, 4, 2]
  %v = input : f32[1, 1, 4, 2]
  %o, %lse = attention(%q, %k, %v) : f32[1, 1, 4, 2], f32[1, 1, 4]
  %d = input : f32[1, 1, 4, 2]
  %dq, %dk, %dv = attention_grad(%q, %k, %v, %o, %lse, %d) : f32[1, 1, 4, 2] @[_, _, a, _], f32[1, 1, 4, 2], f32[1, 1, 4, 2]
  return %dq
})"),
            "@[_, _, a, _], @[_, _, _, _], @[_, _, _, _], @[_, _, a, _], @[_, _, a], @[_, _, a, _] "
            "-> @[_, _, a, _], @[_, _, _, _] partial(sum, a), @[_, _, _, _] partial(sum, a)");
}

TEST_F(ExecutionShardingTest, AReshapeSplitsAnAxisOverItsFactors) {
  EXPECT_EQ(Choose(R"(mesh m = [a=4]
graph g {
  %x = input : f32[8] @[a]
  %y = reshape(%x) {shape=[2, 4]} : f32[2, 4] @[a:(1)2, a:(2)2]
  return %y
})"),
            "@[a] -> @[a:(1)2, a:(2)2]");
}

TEST_F(ExecutionShardingTest, AMergedDimensionKeepsWhatItsLayoutCanExpress) {
  // Rows split over a minor dimension are not contiguous once merged.
  EXPECT_EQ(Choose(R"(mesh m = [a=2]
graph g {
  %x = input : f32[2, 4] @[_, a]
  %y = reshape(%x) {shape=[8]} : f32[8]
  return %y
})"),
            "@[_, _] -> @[_]");
}

TEST_F(ExecutionShardingTest, MicrobatchesOfEveryOperandAreEqual) {
  // The parts of 6 keys over x are 3 keys: no two micro-batches each.
  EXPECT_EQ(Choose(R"(mesh m = [mb=2 temporal, x=2]
graph g {
  %q = input : f32[1, 1, 2, 4]
  %k = input : f32[1, 1, 6, 4]
  %o, %lse = attention_parts(%q, %k, %k) {parts=4} : f32[4, 1, 1, 2, 4] @[x.mb, _, _, _, _], f32[4, 1, 1, 2]
  return %o
})"),
            "@[_, _, _, _], @[_, _, x, _], @[_, _, x, _] -> @[x, _, _, _, _], @[x, _, _, _]");
}

TEST_F(ExecutionShardingTest, ClosedShardingKeepsOnlyTheAxes) {
  const graph::Graph graph = MustParse(R"(mesh m = [a=2, b=2, c=2]
graph g {
  %x = input : f32[8, 8] @[a? p1, ?] partial(sum, b) replicated(c)
  %y = input : f32[8]
  return %x, %y
})");
  const Mesh& mesh = graph.meshes()[0];
  EXPECT_EQ(ToString(mesh, ClosedSharding(mesh, graph.value(0))), "@[a, _] partial(sum, b)");
  EXPECT_EQ(ToString(mesh, ClosedSharding(mesh, graph.value(1))), "@[_]");
}

TEST_F(ExecutionShardingTest, SplitsAxesOverFactorsMajorFirst) {
  graph::ShardingRule rule;
  const int major = rule.AddFactor(4);
  const int minor = rule.AddFactor(3);
  const graph::DimFactors dim = {major, minor};
  using Axes = std::vector<std::vector<AxisRef>>;
  const AxisRef a = {0, 1, 2};
  const AxisRef b = {1, 1, 8};
  // b fills the major factor up and goes on in the minor one, which is the last: it may be uneven.
  EXPECT_EQ(SplitOverFactors({a, b}, dim, rule), (Axes{{a, {1, 1, 2}}, {{1, 2, 4}}}));
  // An axis of 3 neither divides 4 nor is a multiple of it.
  EXPECT_EQ(SplitOverFactors({{2, 1, 3}}, dim, rule), (Axes{{}, {}}));
  EXPECT_EQ(SplitOverFactors({a}, {major}, rule), (Axes{{a}}));
}

}  // namespace
}  // namespace penstock::planner
