#include "planner/sharding/split_sends.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SplitSendsTest : public testing::PlannerFixture {
 protected:
  // Through the passes up to lower-reshards, as if collectives had no latency.
  graph::Graph Lower(std::string_view text, int num_groups = 0) const {
    graph::Graph graph = InsertReshards(MustParse(text));
    SendOptions options;
    if (num_groups > 0) options.placement = StagePlacement{num_groups};
    options.costs.collective = 0;
    const auto check = [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      const absl::Status verified = graph::VerifyGraph(graph);
      EXPECT_TRUE(verified.ok()) << verified << "\n" << graph::PrintGraph(graph);
    };
    check(SplitSends(ops_, options, graph));
    check(LowerReshards(ops_, graph));
    return graph;
  }

  // What crosses stages, by name with its sharding.
  static std::vector<std::string> Crossing(const graph::Graph& graph) {
    std::vector<std::string> crossing;
    const std::vector<std::vector<graph::NodeId>> users = graph.Users();
    for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
      const int stage = graph.node(graph.value(value).producer).stage;
      for (const graph::NodeId user : users[value]) {
        if (graph.node(user).stage == stage) continue;
        const std::string& name = graph.value(value).name;
        crossing.push_back(
            StrCat(name, " ", ShardingOf(graph, name), " to ", graph.node(user).stage));
      }
    }
    return crossing;
  }
};

TEST_F(SplitSendsTest, EachStageGathersOnce) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 4] stage 0
  %y = gelu(%x) : f32[8, 4] stage 0
  %a = relu(%y) : f32[8, 4] stage 1
  %b = add(%a, %y) : f32[8, 4] stage 1
  %c = add(%b, %y) : f32[8, 4] stage 2
  return %c
})");
  EXPECT_THAT(Statements(graph, "local_slice"),
              ElementsAre("%y.part = local_slice(%y) : f32[8, 4] @[tp, _] stage 0",
                          "%b.part = local_slice(%b) : f32[8, 4] @[tp, _] stage 1"));
  EXPECT_THAT(Statements(graph, "all_gather"),
              ElementsAre("%y_1 = all_gather(%y.part) : f32[8, 4] @[_, _] stage 1",
                          "%b_1 = all_gather(%b.part) : f32[8, 4] @[_, _] stage 2",
                          "%y_2 = all_gather(%y.part) : f32[8, 4] @[_, _] stage 2"));
  EXPECT_THAT(Crossing(graph),
              ElementsAre("y.part @[tp, _] to 1", "y.part @[tp, _] to 2", "b.part @[tp, _] to 2"));
}

TEST_F(SplitSendsTest, StagesOfOneGroupPassWholeValues) {
  const std::string_view text = R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 4] stage 0
  %y = gelu(%x) : f32[8, 4] stage 0
  %a = relu(%y) : f32[8, 4] stage 1
  %b = add(%a, %y) : f32[8, 4] stage 2
  return %b
})";
  EXPECT_THAT(Crossing(Lower(text, 2)),
              ElementsAre("y @[_, _] to 2", "y.part @[tp, _] to 1", "a.part @[tp, _] to 2"));
}

TEST_F(SplitSendsTest, AReceiverThatReadsPartsGathersNothing) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 16] @[_, _] stage 0
  %y = gelu(%x) : f32[8, 16] @[_, _] stage 0
  %w = parameter : f32[16, 4] @[tp, _] stage 1
  %z = matmul(%y, %w) : f32[8, 4] @[_, _] stage 1
  return %z
})");
  EXPECT_THAT(Crossing(graph), ElementsAre("y.part @[_, tp] to 1"));
  EXPECT_THAT(Statements(graph, "all_gather"), IsEmpty());
}

// The sum that ends before the addition is scattered, and the addition runs on parts.
TEST_F(SplitSendsTest, AnAllReduceBeforeASendBecomesAReduceScatter) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 16] @[_, tp] stage 0
  %w = parameter : f32[16, 4] @[tp, _] stage 0
  %r = input : f32[8, 4] @[_, _] stage 0
  %b = parameter : f32[4] @[_] stage 0
  %h = matmul(%x, %w) : f32[8, 4] @[_, _] stage 0
  %i = bias_add(%h, %b) : f32[8, 4] @[_, _] stage 0
  %y = add(%r, %i) : f32[8, 4] @[_, _] stage 0
  %z = gelu(%y) : f32[8, 4] @[_, _] stage 1
  return %z
})");
  EXPECT_THAT(Statements(graph, "all_reduce"), IsEmpty());
  EXPECT_THAT(Statements(graph, "reduce_scatter"),
              ElementsAre("%h = reduce_scatter(%h.local) : f32[8, 4] @[tp, _] stage 0"));
  EXPECT_THAT(Statements(graph, "add"),
              ElementsAre("%y = add(%r.part, %i) : f32[8, 4] @[tp, _] stage 0"));
  EXPECT_THAT(Crossing(graph), ElementsAre("y @[tp, _] to 1"));
  EXPECT_THAT(Statements(graph, "all_gather"), SizeIs(1));
}

// Here the sum is read whole in its own stage too.
TEST_F(SplitSendsTest, WhatTheSenderReadsWholeStaysWhole) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 16] @[_, tp] stage 0
  %w = parameter : f32[16, 4] @[tp, _] stage 0
  %y = matmul(%x, %w) : f32[8, 4] @[_, _] stage 0
  %z = gelu(%y) : f32[8, 4] @[_, _] stage 1
  return %z, %y
})");
  EXPECT_THAT(Statements(graph, "all_reduce"), SizeIs(1));
  EXPECT_THAT(Statements(graph, "local_slice"),
              ElementsAre("%y.part = local_slice(%y) : f32[8, 4] @[tp, _] stage 0"));
}

TEST_F(SplitSendsTest, AnOpenSumIsScatteredBeforeItIsSent) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 16] @[_, tp] stage 0
  %w = parameter : f32[16, 4] @[tp, _] stage 0
  %y = matmul(%x, %w) : f32[8, 4] @[_, _] stage 0
  %z = gelu(%y) : f32[8, 4] @[_, _] stage 1
  return %z
})");
  EXPECT_THAT(Statements(graph, "all_reduce"), IsEmpty());
  EXPECT_THAT(Statements(graph, "reduce_scatter"), SizeIs(1));
  EXPECT_THAT(Crossing(graph), SizeIs(1));
  EXPECT_EQ(Crossing(graph)[0].substr(Crossing(graph)[0].find('@')), "@[tp, _] to 1");
}

// Forward and backward of a stage share what arrives; the gradient goes back in the same way.
TEST_F(SplitSendsTest, ForwardAndBackwardShareWhatWasGathered) {
  const graph::Graph forward = MustParse(R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 4] stage 0
  %v = parameter : f32[4, 4] stage 0
  %y = matmul(%x, %v) : f32[8, 4] stage 0
  %w = parameter : f32[4, 4] stage 1
  %z = matmul(%y, %w) : f32[8, 4] stage 1
  %loss = sum_squares(%z) : f32[] stage 1
  return %loss
})");
  const graph::Graph graph = Lower(graph::PrintGraph(Differentiate(forward)));
  EXPECT_THAT(Statements(graph, "all_gather"),
              ElementsAre("%y_1 = all_gather(%y.part) : f32[8, 4] @[_, _] stage 1",
                          ::testing::HasSubstr("%y.grad_1 = all_gather(%y.grad.part)")));
}

// The weight of an embedding that the head reads too, held by both replicas of the first stage.
TEST_F(SplitSendsTest, ReplicasShareTheSendingOfAParameter) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal, dp=2]
graph g {
  %x = input : f32[8, 16] @[mb.dp, _] stage 0
  %w = parameter : f32[16, 16] stage 0
  %y = matmul(%x, %w) : f32[8, 16] @[mb.dp, _] stage 0
  %z = matmul(%y, %w) : f32[8, 16] @[mb.dp, _] stage 1
  return %z
})");
  EXPECT_THAT(Crossing(graph), ElementsAre("w.part @[dp, _] to 1", "y @[mb.dp, _] to 1"));
  EXPECT_THAT(Statements(graph, "all_gather"),
              ElementsAre("%w_1 = all_gather(%w.part) : f32[16, 16] @[_, _] stage 1"));
}

// The gradients of such a weight meet in parts: each stage scatters its own over the replicas.
TEST_F(SplitSendsTest, GradientsOfASharedParameterMeetInParts) {
  const graph::Graph forward = MustParse(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 16] @[dp, _] stage 0
  %w = parameter : f32[16, 16] @[_, _] stage 0
  %y = matmul(%x, %w) : f32[8, 16] @[dp, _] stage 0
  %z = matmul(%y, %w) : f32[8, 16] @[dp, _] stage 1
  %loss = sum_squares(%z) : f32[] stage 1
  return %loss
})");
  const graph::Graph graph = Lower(graph::PrintGraph(Differentiate(forward)));
  EXPECT_THAT(Statements(graph, "reduce_scatter"),
              ElementsAre(::testing::HasSubstr("@[dp, _] stage 1"),
                          ::testing::HasSubstr("@[dp, _] stage 0")));
  EXPECT_THAT(Statements(graph, "add"), ElementsAre(::testing::HasSubstr("@[dp, _] stage 0")));
  EXPECT_THAT(Statements(graph, "all_gather"),
              ::testing::Contains(::testing::HasSubstr("%w.grad = all_gather(%w.grad")));
}

TEST_F(SplitSendsTest, InputsAreMadeWhereTheyAreRead) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=4]
graph g {
  %x = input : f32[8, 4] stage 0
  %y = gelu(%x) : f32[8, 4] stage 1
  return %y
})");
  EXPECT_THAT(CountOps(graph),
              ElementsAre(::testing::Pair("gelu", 1), ::testing::Pair("input", 1)));
}

}  // namespace
}  // namespace penstock::planner
