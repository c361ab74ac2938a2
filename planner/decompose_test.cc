#include "planner/decompose.h"

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class DecomposeTest : public testing::PlannerFixture {
 protected:
  graph::Graph Decompose(std::string_view text) const {
    graph::Graph graph = MustParse(text);
    EXPECT_TRUE(Propagate(PropagationLevel::kUserPriority, &graph).ok());
    const absl::Status status = DecomposeSplitFactors(ops_, graph);
    EXPECT_TRUE(status.ok()) << status;
    return graph;
  }
};

constexpr std::string_view kSplitVocabulary = R"(mesh m = [dp=2, tp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %w = parameter : f32[4, 32] @[_, tp]
  %labels = input : i64[8] @[dp]
  %logits = matmul(%x, %w) : f32[8, 32]
  %rows = cross_entropy(%logits, %labels) : f32[8]
  %loss = reduce_mean(%rows) {axes=[0]} : f32[]
  return %loss
})";

TEST_F(DecomposeTest, CrossEntropyOverASplitVocabularyGathersNothing) {
  const graph::Graph forward = Lower(kSplitVocabulary);
  EXPECT_THAT(Statements(forward, "cross_entropy"), IsEmpty());
  EXPECT_THAT(Statements(forward, "all_gather"), IsEmpty());
  // The maximum, the sum of exponentials, the picked logit; and the loss over dp.
  EXPECT_THAT(Statements(forward, "all_reduce"), SizeIs(4));

  const graph::Graph both = Lower(Differentiate(MustParse(kSplitVocabulary)));
  EXPECT_THAT(Statements(both, "all_gather"), IsEmpty());
  EXPECT_THAT(Statements(both, "cross_entropy_grad"), SizeIs(1));
}

TEST_F(DecomposeTest, AWholeFactorIsLeftAlone) {
  const graph::Graph graph = Decompose(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %y = softmax(%x) : f32[8, 4]
  return %y
})");
  EXPECT_THAT(Statements(graph, "softmax"), SizeIs(1));
}

TEST_F(DecomposeTest, TheResultKeepsItsShardingAndPlace) {
  const graph::Graph graph = Decompose(R"(mesh m = [tp=2]
graph g {
  %x = input : f32[8, 4] @[_, tp]
  %y = softmax(%x) : f32[8, 4] @[_, tp] stage 1
  return %y @[_, tp]
})");
  EXPECT_THAT(Statements(graph, "softmax"), IsEmpty());
  const graph::Value& result = graph.value(graph.returns()[0].value);
  EXPECT_EQ(ToString(graph.meshes()[0], *result.sharding), "@[_, tp]");
  EXPECT_EQ(graph.node(result.producer).stage, 1);
}

TEST_F(DecomposeTest, AFactorSplitInTimeIsGathered) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal]
graph g {
  %x = input : f32[8, 4] @[_, mb]
  %y = softmax(%x) : f32[8, 4]
  return %y
})");
  EXPECT_THAT(Statements(graph, "softmax"), SizeIs(1));
  EXPECT_THAT(Statements(graph, "gather_microbatches"), SizeIs(1));
}

TEST_F(DecomposeTest, WithoutADecompositionTheOperandIsGathered) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=2]
graph g {
  %q = input : f32[1, 2, 4, 8] @[_, _, _, tp]
  %o = attention(%q, %q, %q) : f32[1, 2, 4, 8]
  return %o
})");
  EXPECT_THAT(Statements(graph, "attention"), SizeIs(1));
  EXPECT_THAT(Statements(graph, "all_gather"), SizeIs(1));
}

}  // namespace
}  // namespace penstock::planner
