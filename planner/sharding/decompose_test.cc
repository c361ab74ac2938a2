#include "planner/sharding/decompose.h"

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

// A part of a mean is a sum: in 16 bits it would be rounded before it is added up.
TEST_F(DecomposeTest, TheMeanOfABatchIn16BitsIsF32) {
  const graph::Graph graph = Decompose(R"(mesh m = [dp=2]
graph g {
  %x = input : bf16[8, 4, 3, 3] @[dp, _, _, _]
  %scale = parameter : bf16[4]
  %bias = parameter : bf16[4]
  %y = batch_norm(%x, %scale, %bias) : bf16[8, 4, 3, 3]
  return %y
})");
  EXPECT_THAT(Statements(graph, "batch_norm_inference"), SizeIs(1));
  EXPECT_THAT(Statements(graph, "reduce_mean"), ElementsAre(HasSubstr("dtype=f32")));
  EXPECT_THAT(Statements(graph, "cast"), IsEmpty());
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

constexpr std::string_view kSplitKeys = R"(mesh m = [dp=2, cp=3]
graph g {
  %q = parameter : f32[2, 2, 5, 8] @[dp, _, _, _]
  %k = parameter : f32[2, 2, 7, 8] @[dp, _, cp, _]
  %v = parameter : f32[2, 2, 7, 8] @[dp, _, cp, _]
  %o = attention(%q, %k, %v) {causal=true} : f32[2, 2, 5, 8]
  %loss = reduce_sum(%o) {axes=[0, 1, 2, 3]} : f32[]
  return %loss
})";

TEST_F(DecomposeTest, AttentionOverSplitKeysGathersNothing) {
  const graph::Graph forward = Lower(kSplitKeys);
  EXPECT_THAT(Statements(forward, "attention"), IsEmpty());
  EXPECT_THAT(Statements(forward, "attention_parts"), ElementsAre(HasSubstr("parts=3")));
  EXPECT_THAT(Statements(forward, "all_gather"), IsEmpty());
  // The maxima, the sums of exponentials and the weighted results; and the loss over dp.
  EXPECT_THAT(Statements(forward, "all_reduce"), SizeIs(4));

  // Backward only the gradient of the queries is a sum over keys.
  const graph::Graph both = Lower(Differentiate(MustParse(kSplitKeys)));
  EXPECT_THAT(Statements(both, "all_gather"), IsEmpty());
  EXPECT_THAT(Statements(both, "all_reduce"), SizeIs(5));
  EXPECT_THAT(Statements(both, "attention_grad"),
              ElementsAre(HasSubstr("f32[2, 2, 7, 8] @[dp, _, cp, _], f32[2, 2, 7, 8] @[dp, _, "
                                    "cp, _]")));
}

// Keys pass by the queries, one part at a time.
TEST_F(DecomposeTest, QueriesAndKeysOnOneAxisBecomeARing) {
  constexpr std::string_view kRing = R"(mesh m = [dp=2, cp=3]
graph g {
  %q = parameter : f32[2, 2, 6, 8] @[dp, _, cp, _]
  %k = parameter : f32[2, 2, 9, 8] @[dp, _, cp, _]
  %v = parameter : f32[2, 2, 9, 8] @[dp, _, cp, _]
  %o = attention(%q, %k, %v) : f32[2, 2, 6, 8]
  %loss = reduce_sum(%o) {axes=[0, 1, 2, 3]} : f32[]
  return %loss
})";
  const graph::Graph forward = Lower(kRing);
  EXPECT_THAT(Statements(forward, "attention"), IsEmpty());
  EXPECT_THAT(Statements(forward, "block_attention"),
              ElementsAre(HasSubstr("{block=3}"), HasSubstr("{block=3, shift=1}"),
                          HasSubstr("{block=3, shift=2}")));
  EXPECT_THAT(Statements(forward, "permute"),
              ElementsAre(HasSubstr("{axis=1, shift=3} : f32[2, 9, 2, 2, 8] @[dp, cp, _, _, _]"),
                          HasSubstr("{axis=1, shift=3}")));
  EXPECT_THAT(Statements(forward, "all_gather"), IsEmpty());

  const graph::Graph both = Lower(Differentiate(MustParse(kRing)));
  EXPECT_THAT(Statements(both, "block_attention_grad"), SizeIs(3));
  EXPECT_THAT(Statements(both, "permute"), SizeIs(2 + 2 + 2));
  EXPECT_THAT(Statements(both, "all_gather"), IsEmpty());
}

// An axis serves one factor: where the sequence does not divide, queries stay split, and the keys
// come together.
TEST_F(DecomposeTest, UnevenQueriesAndKeysOnOneAxisKeepTheQueriesSplit) {
  const graph::Graph graph = Lower(R"(mesh m = [cp=2]
graph g {
  %q = input : f32[1, 2, 5, 8] @[_, _, cp, _]
  %k = input : f32[1, 2, 5, 8] @[_, _, cp, _]
  %o = attention(%q, %k, %k) {causal=true} : f32[1, 2, 5, 8] @[_, _, cp, _]
  return %o
})");
  EXPECT_THAT(Statements(graph, "attention"), ElementsAre(HasSubstr("@[_, _, cp, _]")));
  EXPECT_THAT(Statements(graph, "all_gather"), SizeIs(1));
}

TEST_F(DecomposeTest, QueriesAndKeysOnTwoAxesAreBothSplit) {
  const graph::Graph graph = Lower(R"(mesh m = [a=2, b=2]
graph g {
  %q = input : f32[1, 2, 4, 8] @[_, _, a, _]
  %k = input : f32[1, 2, 4, 8] @[_, _, b, _]
  %o = attention(%q, %k, %k) {causal=true} : f32[1, 2, 4, 8] @[_, _, a, _]
  return %o
})");
  EXPECT_THAT(Statements(graph, "attention_parts"), ElementsAre(HasSubstr("@[b, _, _, a, _]")));
  EXPECT_THAT(Statements(graph, "all_gather"), IsEmpty());
}

TEST_F(DecomposeTest, PackedAttentionOverAnEvenSequenceIsARing) {
  constexpr std::string_view kSplitSequence = R"(mesh m = [cp=2]
graph g {
  %qkv = parameter : f32[2, 6, 3, 2, 4] @[_, cp, _, _, _]
  %o = qkv_attention(%qkv) {causal=true} : f32[2, 6, 2, 4]
  %loss = reduce_sum(%o) {axes=[0, 1, 2, 3]} : f32[]
  return %loss
})";
  const graph::Graph both = Lower(Differentiate(MustParse(kSplitSequence)));
  EXPECT_THAT(Statements(both, "block_attention"), SizeIs(2));
  EXPECT_THAT(Statements(both, "block_attention_grad"), SizeIs(2));
  // Keys and values forward and backward, and their gradients home.
  EXPECT_THAT(Statements(both, "permute"), SizeIs(3));
  EXPECT_THAT(Statements(both, "all_gather"), IsEmpty());
  EXPECT_THAT(Statements(both, "transpose"), IsEmpty());
}

// Where its result, or the statistics of that, go by heads, so does attention.
TEST_F(DecomposeTest, AttentionThatCanRunByHeadsDoes) {
  const graph::Graph graph = Lower(R"(mesh m = [cp=2]
graph g {
  %qkv = input : f32[2, 6, 3, 2, 4] @[_, cp, _, _, _]
  %o, %lse = qkv_attention(%qkv) {causal=true} : f32[2, 6, 2, 4] @[_, cp, _, _], f32[2, 2, 6] @[_, cp, _]
  return %o, %lse
})");
  EXPECT_THAT(Statements(graph, "qkv_attention"), SizeIs(1));
  EXPECT_THAT(Statements(graph, "all_to_all"), SizeIs(2));
  EXPECT_THAT(Statements(graph, "permute"), IsEmpty());
}

TEST_F(DecomposeTest, PackedAttentionOverAnUnevenSequenceGathersKeysAndValuesOnly) {
  constexpr std::string_view kSplitSequence = R"(mesh m = [cp=2]
graph g {
  %qkv = parameter : f32[2, 7, 3, 2, 4] @[_, cp, _, _, _]
  %o = qkv_attention(%qkv) {causal=true} : f32[2, 7, 2, 4]
  %loss = reduce_sum(%o) {axes=[0, 1, 2, 3]} : f32[]
  return %loss
})";
  const graph::Graph both = Lower(Differentiate(MustParse(kSplitSequence)));
  EXPECT_THAT(Statements(both, "qkv_attention"), IsEmpty());
  EXPECT_THAT(Statements(both, "qkv_attention_grad"), IsEmpty());
  EXPECT_THAT(Statements(both, "attention"), ElementsAre(HasSubstr("@[_, _, cp, _]")));
  // k and v, forward and again backward; their gradients are summed to whom they belong.
  EXPECT_THAT(Statements(both, "all_gather"), SizeIs(4));
  EXPECT_THAT(Statements(both, "reduce_scatter"), SizeIs(2));
  EXPECT_THAT(Statements(both, "all_reduce"), SizeIs(1));
}

TEST_F(DecomposeTest, AFactorSplitInTimeAndSpaceIsNotGathered) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal, tp=2]
graph g {
  %logits = input : f32[8, 32] @[_, mb.tp]
  %labels = input : i64[8]
  %rows = cross_entropy(%logits, %labels) : f32[8]
  return %rows
})");
  EXPECT_THAT(Statements(graph, "cross_entropy"), IsEmpty());
  EXPECT_THAT(Statements(graph, "all_gather"), IsEmpty());
  EXPECT_THAT(Statements(graph, "gather_microbatches"), IsEmpty());
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
