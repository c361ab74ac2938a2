#include "planner/sharding/propagate.h"

#include <chrono>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/strings.h"
#include "graph/builder.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::planner {
namespace {

using graph::Graph;

class PropagateTest : public ::testing::Test {
 protected:
  Graph MustParse(std::string_view text) {
    absl::StatusOr<Graph> graph = graph::ParseGraph(text, "test.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    return graph.ok() ? *std::move(graph) : Graph();
  }

  // One line a value and one a return, "x @[a?, ?]", after propagation at the level.
  std::string Run(PropagationLevel level, std::string_view text) {
    Graph graph = MustParse(text);
    const absl::Status status = Propagate(level, &graph);
    if (!status.ok()) return std::string(status.message());
    const absl::Status verified = graph::VerifyGraph(graph);
    EXPECT_TRUE(verified.ok()) << verified.message();
    std::string lines = "\n";
    for (graph::ValueId id = 0; id < graph.num_values(); ++id) {
      const graph::Value& value = graph.value(id);
      const graph::Mesh& mesh = graph.meshes()[graph.node(value.producer).mesh];
      StrAppend(&lines, value.name, " ", ToString(mesh, *value.sharding), "\n");
    }
    for (const graph::Return& returned : graph.returns()) {
      const graph::Node& node = graph.node(graph.value(returned.value).producer);
      StrAppend(&lines, "return ", ToString(graph.meshes()[node.mesh], *returned.sharding), "\n");
    }
    return lines;
  }

  std::string RunAll(std::string_view text) { return Run(PropagationLevel::kUserPriority, text); }
  std::string RunBasic(std::string_view text) { return Run(PropagationLevel::kBasic, text); }
  std::string RunAggressive(std::string_view text) {
    return Run(PropagationLevel::kAggressive, text);
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

TEST_F(PropagateTest, HeaderExample) {
  constexpr std::string_view kText = R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 8] @[a, b]
  %y = input : f32[8, 8]
  %w = input : f32[8, 16]
  %s = add(%x, %y) : f32[8, 8]
  %d = matmul(%s, %w) : f32[8, 16]
  return %d
})";
  constexpr std::string_view kExpected = R"(
x @[a, b]
y @[a?, b?]
w @[b?, ?]
s @[a?, b?]
d @[a?, ?]
return @[a?, ?]
)";
  EXPECT_EQ(RunAll(kText), kExpected);
  EXPECT_EQ(RunBasic(kText), kExpected);
  EXPECT_EQ(RunAggressive(kText), kExpected);
  EXPECT_EQ(Run(PropagationLevel::kOpPriority, kText), kExpected);
}

TEST_F(PropagateTest, NothingWrittenMeansEverythingOpen) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2]
graph g { %x = input : f32[4] %y = neg(%x) : f32[4] return %y })"),
            R"(
x @[?]
y @[?]
return @[?]
)");
}

TEST_F(PropagateTest, ReturnsPushBackwards) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2]
graph g { %x = input : f32[4, 4] %y = exp(%x) : f32[4, 4] return %y @[a, _] })"),
            R"(
x @[a?, ?]
y @[a?, ?]
return @[a, _]
)");
}

TEST_F(PropagateTest, ClosedDimensionsTakeNothing) {
  EXPECT_EQ(RunBasic(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 8] @[a, _]
  %w = input : f32[8, 16] @[_, b]
  %d = matmul(%x, %w) : f32[8, 16] @[_, ?]
  return %d
})"),
            R"(
x @[a, _]
w @[_, b]
d @[_, b?]
return @[?, b?]
)");
}

TEST_F(PropagateTest, ConflictsKeepTheCommonMajorPart) {
  EXPECT_EQ(RunBasic(R"(mesh m = [a=2, b=2, c=2]
graph g {
  %x = input : f32[8, 8] @[b.a, _]
  %y = input : f32[8, 8] @[b.c, _]
  %z = input : f32[8, 8] @[a.b, _]
  %u = add(%x, %y) : f32[8, 8]
  %v = add(%x, %z) : f32[8, 8]
  return %u, %v
})"),
            R"(
x @[b.a, _]
y @[b.c, _]
z @[a.b, _]
u @[b?, ?]
v @[?, ?]
return @[b?, ?]
return @[?, ?]
)");
}

TEST_F(PropagateTest, ReplicatedAndPartialAxesAreNotUsed) {
  EXPECT_EQ(RunBasic(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 8] @[a.b, _]
  %y = input : f32[8, 8] @[?, ?] replicated(a)
  %u = add(%x, %y) : f32[8, 8] @[?, b?]
  return %u
})"),
            R"(
x @[a.b, _]
y @[?, ?] replicated(a)
u @[?, b?]
return @[?, b?]
)");
  EXPECT_EQ(RunAggressive(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 8] @[a, b]
  %w = input : f32[8, 16]
  %d = matmul(%x, %w) : f32[8, 16] @[?, ?] partial(sum, b)
  %e = add(%d, %d) : f32[8, 16]
  return %e @[?, b]
})"),
            R"(
x @[a, b]
w @[b?, ?]
d @[a?, ?] partial(sum, b)
e @[a?, b?]
return @[a?, b]
)");
}

TEST_F(PropagateTest, SubAxesPropagateAndGrow) {
  EXPECT_EQ(RunBasic(R"(mesh m = [a=16, b=2]
graph g {
  %x = input : f32[8, 8] @[a?, ?]
  %y = input : f32[8, 8] @[a:(1)2?, a:(4)2?]
  %u = add(%x, %y) : f32[8, 8] @[?, b?]
  return %u
})"),
            R"(
x @[a?, ?]
y @[a:(1)4?, a:(4)2?]
u @[a:(1)4?, b?]
return @[a:(1)4?, b?]
)");
  EXPECT_EQ(RunBasic(R"(mesh m = [a=6]
graph g {
  %x = input : f32[2, 2] @[a:(1)2, _]
  %y = sin(%x) : f32[2, 2]
  return %y @[_, a:(3)2]
})"),
            R"(
x @[a:(1)2, _]
y @[?, a:(3)2?]
return @[_, a:(3)2]
)");
}

TEST_F(PropagateTest, UnevenSizesPropagate) {
  EXPECT_EQ(RunBasic(R"(mesh m = [a=3, b=8]
graph g { %x = input : f32[2, 4] @[b, a] %y = neg(%x) : f32[2, 4] return %y })"),
            R"(
x @[b, a]
y @[b?, a?]
return @[b?, a?]
)");
}

TEST_F(PropagateTest, ReshapeSplitsAndMerges) {
  EXPECT_EQ(RunBasic(R"(mesh m = [a=16, b=2]
graph g {
  %x = input : f32[32] @[a]
  %r = reshape(%x) {shape=[4, 2, 4]} : f32[4, 2, 4]
  %s = reshape(%r) {shape=[4, 8]} : f32[4, 8]
  %t = reshape(%s) {shape=[32]} : f32[32]
  return %t
})"),
            R"(
x @[a]
r @[a:(1)4?, a:(4)2?, a:(8)2?]
s @[a:(1)4?, a:(4)4?]
t @[a?]
return @[a?]
)");
  EXPECT_EQ(RunBasic(R"(mesh m = [a=4, b=2, c=2]
graph g {
  %x = input : f32[8, 4] @[c.a, b]
  %r = reshape(%x) {shape=[2, 16]} : f32[2, 16]
  return %r
})"),
            R"(
x @[c.a, b]
r @[c?, a.b?]
return @[c?, a.b?]
)");
}

TEST_F(PropagateTest, ReshapeNeedsDivisorsButForTheMinorMost) {
  constexpr std::string_view kText = R"(mesh m = [a=6]
graph g { %x = input : f32[8] @[a] %r = reshape(%x) {shape=[2, 4]} : f32[2, 4] return %r })";
  EXPECT_EQ(RunBasic(kText), R"(
x @[a]
r @[a:(1)2?, a:(2)3?]
return @[a:(1)2?, a:(2)3?]
)");
  EXPECT_EQ(RunBasic(R"(mesh m = [a=3, b=2]
graph g {
  %x = input : f32[2, 8] @[?, a.b?]
  %r = reshape(%x) {shape=[2, 2, 4]} : f32[2, 2, 4] @[b, ?, ?]
  return %r
})"),
            R"(
x @[?, a.b?]
r @[b, ?, ?]
return @[b?, ?, ?]
)");
}

TEST_F(PropagateTest, ElementwiseBeforeMatmul) {
  constexpr std::string_view kText = R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 8] @[a?, ?]
  %y = input : f32[8, 8]
  %d = matmul(%x, %y) : f32[8, 8]
  %e = neg(%d) : f32[8, 8]
  %f = exp(%e) : f32[8, 8]
  return %f @[?, a?]
})";
  EXPECT_EQ(RunAll(kText), R"(
x @[a?, ?]
y @[?, a?]
d @[?, a?]
e @[?, a?]
f @[?, a?]
return @[?, a?]
)");
  // Without operator priority the matmul, which comes first, decides.
  EXPECT_EQ(RunAggressive(kText), R"(
x @[a?, ?]
y @[?, ?]
d @[a?, ?]
e @[a?, ?]
f @[?, a?]
return @[?, a?]
)");
}

TEST_F(PropagateTest, PassThroughFactorsBeforeReductions) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[32, 1024]
  %w = input : f32[1024, 16] @[a?, b?]
  %d = matmul(%x, %w) : f32[32, 16]
  return %d @[a?, b?]
})"),
            R"(
x @[a?, ?]
w @[a?, b?]
d @[a?, b?]
return @[a?, b?]
)");
}

TEST_F(PropagateTest, ValuesWithSeveralUsesWait) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 8] @[a, _]
  %s = sin(%x) : f32[8, 8]
  %u = add(%s, %s) : f32[8, 8]
  %v = add(%s, %s) : f32[8, 8]
  %p = cos(%u) : f32[8, 8]
  %q = cos(%v) : f32[8, 8]
  return %p @[_, a], %q @[_, a]
})"),
            R"(
x @[a, _]
s @[a?, ?]
u @[?, a?]
v @[?, a?]
p @[?, a?]
q @[?, a?]
return @[_, a]
return @[_, a]
)");
}

TEST_F(PropagateTest, DynamicSlicesPassForwardFirst) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 8] @[a, _]
  %i = input : i64[2]
  %w = dynamic_slice(%x, %i) {sizes=[8, 2]} : f32[8, 2]
  %u = add(%w, %w) : f32[8, 2]
  %v = add(%w, %w) : f32[8, 2]
  %z = mul(%u, %v) : f32[8, 2]
  return %z @[_, a]
})"),
            R"(
x @[a, _]
i @[?]
w @[a?, ?]
u @[?, a?]
v @[?, a?]
z @[?, a?]
return @[_, a]
)");
}

TEST_F(PropagateTest, BroadcastsBackwardBeforeForward) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[32] @[a]
  %u = broadcast(%x) {shape=[32, 16], axes=[0]} : f32[32, 16]
  %v = broadcast(%u) {shape=[32, 16, 8], axes=[0, 1]} : f32[32, 16, 8]
  return %v @[_, a, _]
})"),
            R"(
x @[a]
u @[?, a?]
v @[?, a?, ?]
return @[_, a, _]
)");
}

TEST_F(PropagateTest, LowerPrioritiesAreKeptButWait) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2, c=2]
graph g {
  %x = input : f32[8, 8] @[a, b p4]
  %y = input : f32[8, 8]
  %u = add(%x, %y) : f32[8, 8]
  %v = div(%u, %y) : f32[8, 8] @[?, c? p1]
  return %v
})"),
            R"(
x @[a, b]
y @[a?, c?]
u @[a?, c?]
v @[a?, c?]
return @[a?, c?]
)");
}

TEST_F(PropagateTest, LowerPriorityDimensionMayStillGrow) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2, c=2]
graph g {
  %x = input : f32[8, 8] @[b? p1, _]
  %y = input : f32[8, 8]
  %z = input : f32[8, 8]
  %u = add(%x, %y) : f32[8, 8] @[c?, ?]
  %v = add(%x, %z) : f32[8, 8] @[b.a? p1, _]
  return %u, %v
})"),
            R"(
x @[b.a?, _]
y @[c?, ?]
z @[b.a?, ?]
u @[c?, ?]
v @[b.a?, _]
return @[c?, ?]
return @[b.a?, ?]
)");
}

TEST_F(PropagateTest, PrioritiesAreIgnoredAndDroppedBelowTheTopLevel) {
  EXPECT_EQ(RunBasic(R"(mesh m = [a=2]
graph g { %x = input : f32[8] @[a p3] %y = neg(%x) : f32[8] return %y @[? p0] })"),
            R"(
x @[a]
y @[a?]
return @[a?]
)");
}

TEST_F(PropagateTest, MicrobatchesAreOrdinaryAxes) {
  EXPECT_EQ(RunAll(R"(mesh m = [mb=4 temporal, dp=2, tp=2]
graph g {
  %x  = input : f32[16, 8] @[mb.dp, _]
  %w1 = parameter : f32[8, 32] @[_, tp]
  %h  = matmul(%x, %w1) : f32[16, 32]
  %g  = gelu(%h) : f32[16, 32]
  %w2 = parameter : f32[32, 8]
  %y  = matmul(%g, %w2) : f32[16, 8]
  %l  = reduce_sum(%y) {axes=[0, 1]} : f32[]
  return %l
})"),
            R"(
x @[mb.dp, _]
w1 @[_, tp]
h @[mb.dp?, tp?]
g @[mb.dp?, tp?]
w2 @[tp?, ?]
y @[mb.dp?, ?]
l @[]
return @[]
)");
}

TEST_F(PropagateTest, TemporalAxesStopWhereTheyDoNotDivide) {
  EXPECT_EQ(RunAll(R"(mesh m = [mb=4 temporal, dp=2]
graph g {
  %x = input : f32[8] @[mb]
  %s = slice(%x) {start=[0], limit=[6]} : f32[6]
  return %s
})"),
            R"(
x @[mb]
s @[?]
return @[?]
)");
}

TEST_F(PropagateTest, AssignedValueFollowsItsState) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2, b=2]
graph g {
  %w = parameter : f32[8, 8] @[a, _]
  %g = input : f32[8, 8]
  %n = sub(%w, %g) : f32[8, 8]
  %k = neg(%g) : f32[8, 8]
  %s = state : f32[8, 8] @[_, b]
  assign(%w, %n)
  assign(%s, %k)
})"),
            R"(
w @[a, _]
g @[a?, b?]
n @[a?, b?]
k @[a?, b?]
s @[_, b]
)");
}

TEST_F(PropagateTest, MeshesDoNotShareAxes) {
  EXPECT_EQ(RunAll(R"(mesh m = [a=2]
mesh n = [a=2]
graph g {
  %x = input : f32[8] @[a] on m
  %y = neg(%x) : f32[8] on n
  %z = neg(%y) : f32[8] on n
  return %z @[a]
})"),
            R"(
x @[a]
y @[a?]
z @[a?]
return @[a]
)");
}

TEST_F(PropagateTest, FixpointIsStable) {
  Graph graph = MustParse(R"(mesh m = [a=2, b=4, c=2]
graph g {
  %x = input : f32[8, 12] @[a.c, ?]
  %w = parameter : f32[12, 16] @[b?, a?]
  %d = matmul(%x, %w) : f32[8, 16]
  %r = reshape(%d) {shape=[2, 4, 16]} : f32[2, 4, 16]
  %t = transpose(%r) {permutation=[1, 0, 2]} : f32[4, 2, 16]
  %s = reduce_sum(%t) {axes=[0]} : f32[2, 16]
  return %s @[_, b]
})");
  ASSERT_TRUE(Propagate(PropagationLevel::kUserPriority, &graph).ok());
  const std::string once = PrintGraph(graph);
  ASSERT_TRUE(Propagate(PropagationLevel::kUserPriority, &graph).ok());
  EXPECT_EQ(PrintGraph(graph), once);
}

TEST_F(PropagateTest, ThousandsOfNodesInWellUnderASecond) {
  std::string text =
      "mesh m = [mb=4 temporal, dp=4, tp=8]\ngraph g {\n"
      "%x0 = input : f32[64, 512] @[mb.dp, ?]\n";
  constexpr int kLayers = 600;
  for (int i = 0; i < kLayers; ++i) {
    StrAppend(&text, "%w", i, " = parameter : f32[512, 2048] ", i % 2 == 0 ? "@[_, tp]" : "", "\n",
              "%v", i, " = parameter : f32[2048, 512]\n", "%h", i, " = matmul(%x", i, ", %w", i,
              ") : f32[64, 2048]\n", "%g", i, " = gelu(%h", i, ") : f32[64, 2048]\n", "%y", i,
              " = matmul(%g", i, ", %v", i, ") : f32[64, 512]\n", "%x", i + 1, " = add(%x", i,
              ", %y", i, ") : f32[64, 512]\n");
  }
  StrAppend(&text, "return %x", kLayers, "\n}");
  Graph graph = MustParse(text);
  ASSERT_GT(graph.num_nodes(), 3000);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(Propagate(PropagationLevel::kUserPriority, &graph).ok());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(elapsed.count(), 10.0);
#else
  EXPECT_LT(elapsed.count(), 1.0);
#endif
  const graph::Value& last = graph.value(graph.returns()[0].value);
  EXPECT_EQ(ToString(graph.meshes()[0], *last.sharding), "@[mb.dp?, ?]");
  const graph::Value& v0 = graph.value(graph.FindValue("v0"));
  EXPECT_EQ(ToString(graph.meshes()[0], *v0.sharding), "@[tp?, ?]");
}

}  // namespace
}  // namespace penstock::planner
