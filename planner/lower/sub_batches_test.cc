#include "planner/lower/sub_batches.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SubBatchesTest : public testing::PlannerFixture {
 protected:
  graph::Graph Split(std::string_view text, int64_t least_bytes = 0) const {
    graph::Graph graph = MustParse(text);
    const absl::Status status = SplitIntoSubBatches(ops_, least_bytes, graph);
    EXPECT_TRUE(status.ok()) << status;
    const absl::Status verified = graph::VerifyGraph(graph);
    EXPECT_TRUE(verified.ok()) << verified << "\n" << graph::PrintGraph(graph);
    return graph;
  }

  // The values that nodes with operands make, in their order.
  static std::vector<std::string> Made(const graph::Graph& graph) {
    std::vector<std::string> names;
    for (const graph::Node& node : graph.nodes()) {
      if (!node.operands.empty()) names.push_back(graph.value(node.results[0]).name);
    }
    return names;
  }
};

// The example of the header, with one more product, and a sum over the batch.
constexpr std::string_view kTwoProducts = R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8, 16] @[_, _]
  %w = parameter : f32[16, 64] @[tp, _]
  %v = parameter : f32[64, 16] @[tp, _]
  %xs = local_slice(%x) : f32[8, 16] @[_, tp]
  %p = matmul(%xs, %w) : f32[8, 64] @[_, _] partial(sum, tp)
  %r = all_reduce(%p) : f32[8, 64] @[_, _]
  %y = gelu(%r) : f32[8, 64] @[_, _]
  %ys = local_slice(%y) : f32[8, 64] @[_, tp]
  %q = matmul(%ys, %v) : f32[8, 16] @[_, _] partial(sum, tp)
  %s = all_reduce(%q) : f32[8, 16] @[_, _]
  %sum = reduce_sum(%y) {axes=[0]} : f32[64] @[_]
  return %s @[_, _], %sum @[_]
})";

// A part of %gs would be taken once a step, in a phase that may come behind those of %p.
TEST_F(SubBatchesTest, WhatReadsPartsOfWhatIsMadeOnceAStepStaysWhole) {
  const graph::Graph graph = Split(R"(mesh m = [a=2, mb=2 temporal]
graph g {
  %x = input {sub_batches=2} : f32[8, 16] @[_, _]
  %w = input : f32[16, 64] @[a, mb]
  %g = gelu(%x) : f32[8, 16] @[_, _]
  %gs = local_slice(%g) : f32[8, 16] @[_, a]
  %p = matmul(%gs, %w) : f32[8, 64] @[_, mb] partial(sum, a)
  %r = all_reduce(%p) : f32[8, 64] @[_, mb]
  return %r @[_, mb]
})");
  EXPECT_THAT(Made(graph), ElementsAre("g", "gs", "p", "r"));
}

TEST_F(SubBatchesTest, SubBatchesTakeTurnsBetweenCollectives) {
  const graph::Graph graph = Split(kTwoProducts);
  EXPECT_THAT(Made(graph), ElementsAre("xs.sub0", "p.sub0", "r.sub0",            //
                                       "xs.sub1", "p.sub1", "r.sub1",            //
                                       "y.sub0", "ys.sub0", "q.sub0", "s.sub0",  //
                                       "y.sub1", "ys.sub1", "q.sub1", "s.sub1",  //
                                       "y", "sum", "s"));
  EXPECT_THAT(Statements(graph, "join_sub_batches"),
              ElementsAre(HasSubstr("%y = join_sub_batches(%y.sub0, %y.sub1) : f32[8, 64] @[_, _]"),
                          HasSubstr("%s = join_sub_batches(%s.sub0, %s.sub1)")));
  EXPECT_EQ(ShardingOf(graph, "q.sub1"), "@[_ subbatch(of=2, index=1), _] partial(sum, tp)");
  EXPECT_EQ(ShardingOf(graph, "ys.sub0"), "@[_ subbatch(of=2, index=0), tp]");
  // Inputs are read in parts.
  EXPECT_THAT(Statements(graph, "input"), ElementsAre(HasSubstr("%x = input : "),
                                                      HasSubstr("input {feed=\"x\"} : f32[8, 16] "
                                                                "@[_ subbatch(of=2, index=0), _]"),
                                                      HasSubstr("subbatch(of=2, index=1)")));
}

TEST_F(SubBatchesTest, TheTextRoundTrips) {
  const graph::Graph graph = Split(kTwoProducts);
  EXPECT_EQ(graph::PrintGraph(MustParse(graph::PrintGraph(graph))), graph::PrintGraph(graph));
}

TEST_F(SubBatchesTest, SmallCollectivesStayWhole) {
  EXPECT_THAT(Statements(Split(kTwoProducts, 4 * 16 * 4 + 1), "all_reduce"), SizeIs(3));
  const std::string before = graph::PrintGraph(MustParse(kTwoProducts));
  EXPECT_EQ(graph::PrintGraph(Split(kTwoProducts, 4 * 64 * 4 + 1)), before);
}

// What no collective follows or leads to is computed at once, as is what mixes the batch.
TEST_F(SubBatchesTest, OtherNodesStayWhole) {
  const graph::Graph graph = Split(R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8, 16] @[_, _]
  %w = parameter : f32[16, 64] @[_, tp]
  %a = matmul(%x, %w) : f32[8, 64] @[_, tp]
  %b = gelu(%a) : f32[8, 64] @[_, tp]
  return %b @[_, tp]
})");
  EXPECT_THAT(Made(graph), ElementsAre("a", "b"));
  const graph::Graph mixed = Split(R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8, 16] @[_, _]
  %w = parameter : f32[16, 64] @[tp, _]
  %xs = local_slice(%x) : f32[8, 16] @[_, tp]
  %p = matmul(%xs, %w) : f32[8, 64] @[_, _] partial(sum, tp)
  %r = all_reduce(%p) : f32[8, 64] @[_, _]
  %soft = softmax(%r) {axis=0} : f32[8, 64] @[_, _]
  %half = slice(%r) {start=[0, 0], limit=[4, 64]} : f32[4, 64] @[_, _]
  return %soft @[_, _], %half @[_, _]
})");
  EXPECT_THAT(Statements(mixed, "softmax"), ElementsAre(HasSubstr("softmax(%r)")));
  EXPECT_THAT(Statements(mixed, "slice"), ElementsAre(HasSubstr("slice(%r)")));
  EXPECT_THAT(Statements(mixed, "all_reduce"), SizeIs(2));
}

// Gradients of weights come behind the next segment of the backward pass.
TEST_F(SubBatchesTest, GradientsOfWeightsWait) {
  const graph::Graph graph = Split(R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8, 16] @[_, _]
  %w = parameter : f32[16, 64] @[_, tp]
  %v = parameter : f32[16, 64] @[_, tp]
  %g = neg(%x) : f32[8, 16] @[_, _] phase backward
  %a = matmul(%g, %w) : f32[8, 64] @[_, tp] phase backward
  %b = matmul(%a, %w) {transpose_b=true} : f32[8, 16] @[_, _] partial(sum, tp) phase backward
  %c = all_reduce(%b) : f32[8, 16] @[_, _] phase backward
  %dw = einsum(%x, %a) {equation="mk,mn->kn"} : f32[16, 64] @[_, tp] phase weight_backward
  %d = matmul(%c, %v) : f32[8, 64] @[_, tp] phase backward
  %e = matmul(%d, %v) {transpose_b=true} : f32[8, 16] @[_, _] partial(sum, tp) phase backward
  %f = all_reduce(%e) : f32[8, 16] @[_, _] phase backward
  return %f @[_, _], %dw @[_, tp]
})");
  EXPECT_THAT(Made(graph), ElementsAre("g.sub0", "a.sub0", "b.sub0", "c.sub0",  //
                                       "g.sub1", "a.sub1", "b.sub1", "c.sub1",  //
                                       "d.sub0", "e.sub0", "f.sub0",            //
                                       "d.sub1", "e.sub1", "f.sub1",            //
                                       "a", "dw", "f"));
}

// The batch is the second dimension after the transposition: its sub-batches are not contiguous.
TEST_F(SubBatchesTest, ScatteredSubBatchesStayWhole) {
  const graph::Graph graph = Split(R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8, 16] @[_, _]
  %y = exp(%x) : f32[8, 16] @[_, _] partial(sum, tp)
  %t = transpose(%y) {permutation=[1, 0]} : f32[16, 8] @[_, _] partial(sum, tp)
  %r = all_reduce(%t) : f32[16, 8] @[_, _]
  return %r @[_, _]
})");
  EXPECT_THAT(Made(graph), ElementsAre("y", "t", "r"));
}

// What the next stage reads is sent once, and taken apart there.
TEST_F(SubBatchesTest, StagesPassWholeValuesOn) {
  const graph::Graph graph = Split(R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8, 16] @[_, _] stage 0
  %a = exp(%x) : f32[8, 16] @[_, _] partial(sum, tp) stage 0
  %b = all_reduce(%a) : f32[8, 16] @[_, _] stage 0
  %c = exp(%b) : f32[8, 16] @[_, _] partial(sum, tp) stage 1
  %d = all_reduce(%c) : f32[8, 16] @[_, _] stage 1
  return %d @[_, _]
})");
  EXPECT_THAT(Made(graph), ElementsAre("a.sub0", "b.sub0", "a.sub1", "b.sub1",  //
                                       "b", "b.sub0_1", "c.sub0", "d.sub0",     //
                                       "b.sub1_1", "c.sub1", "d.sub1", "d"));
  EXPECT_THAT(Statements(graph, "local_slice"),
              ElementsAre(AllOf(HasSubstr("local_slice(%b)"), HasSubstr("stage 1")),
                          AllOf(HasSubstr("local_slice(%b)"), HasSubstr("stage 1"))));
}

TEST_F(SubBatchesTest, InputsHaveToAgree) {
  graph::Graph graph = MustParse(R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8]
  %y = input {sub_batches=4} : f32[8]
  return %x, %y
})");
  EXPECT_THAT(std::string(SplitIntoSubBatches(ops_, 0, graph).message()),
              AllOf(HasSubstr("%y has 4 sub-batches"), HasSubstr("another input has 2")));
}

TEST_F(SubBatchesTest, ReshapesAreOfWholeValuesOrOfSubBatches) {
  const graph::Graph graph = Split(R"(mesh m = [tp=2]
graph g {
  %x = input {sub_batches=2} : f32[8, 4, 4] @[_, _, _]
  %n = exp(%x) : f32[8, 4, 4] @[_, _, _] partial(sum, tp)
  %r = all_reduce(%n) : f32[8, 4, 4] @[_, _, _]
  %flat = reshape(%r) {shape=[32, 4]} : f32[32, 4] @[_, _]
  %y = exp(%flat) : f32[32, 4] @[_, _]
  %sum = reduce_sum(%flat) {axes=[0]} : f32[4] @[_]
  return %y @[_, _], %sum @[_]
})");
  EXPECT_EQ(ShardingOf(graph, "flat.sub1"), "@[_ subbatch(of=2, index=1), _]");
  EXPECT_THAT(Statements(graph, "reshape"), SizeIs(3));
  EXPECT_THAT(Statements(graph, "reduce_sum"), ElementsAre(HasSubstr("reduce_sum(%flat)")));
}

}  // namespace
}  // namespace penstock::planner
