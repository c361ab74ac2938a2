#include "planner/sharding/insert_reshards.h"

#include <string>

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class InsertReshardsTest : public testing::PlannerFixture {};

TEST_F(InsertReshardsTest, AgreementNeedsNothing) {
  const graph::Graph graph = Lower(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %w = parameter : f32[4, 4]
  %y = matmul(%x, %w) : f32[8, 4]
  %z = gelu(%y) : f32[8, 4]
  return %z
})");
  EXPECT_THAT(CountOps(graph),
              ElementsAre(::testing::Pair("gelu", 1), ::testing::Pair("input", 1),
                          ::testing::Pair("matmul", 1), ::testing::Pair("parameter", 1)));
}

TEST_F(InsertReshardsTest, ATensorParallelMlpReducesOnceForward) {
  const graph::Graph graph = Lower(R"(mesh m = [dp=2, tp=2]
graph mlp {
  %x  = input                        : f32[8, 16]   @[dp, _]
  %w1 = parameter                    : f32[16, 32]  @[_, tp]
  %b1 = parameter                    : f32[32]      @[tp]
  %h  = matmul(%x, %w1)              : f32[8, 32]
  %a  = bias_gelu(%h, %b1)           : f32[8, 32]
  %w2 = parameter                    : f32[32, 16]  @[tp, _]
  %y  = matmul(%a, %w2)              : f32[8, 16]   @[dp, _]
  %b2 = parameter                    : f32[16]
  %z  = bias_add(%y, %b2)            : f32[8, 16]
  return %z
})");
  EXPECT_THAT(Statements(graph, "all_reduce"),
              ElementsAre("%y = all_reduce(%y.local) : f32[8, 16] @[dp, _]"));
  for (const char* op : {"all_gather", "all_to_all", "permute", "reduce_scatter", "local_slice"}) {
    EXPECT_THAT(Statements(graph, op), IsEmpty()) << op;
  }
}

TEST_F(InsertReshardsTest, GradientsOfADataParallelLayerAreReducedOnceEach) {
  const graph::Graph graph = Lower(Differentiate(MustParse(R"(mesh m = [dp=4]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %w = parameter : f32[4, 4]
  %b = parameter : f32[4]
  %h = matmul(%x, %w) : f32[8, 4]
  %y = bias_add(%h, %b) : f32[8, 4]
  %loss = sum_squares(%y) : f32[]
  return %loss
})")));
  EXPECT_THAT(Statements(graph, "all_reduce"), SizeIs(3));  // the loss, dw, db
  EXPECT_EQ(ShardingOf(graph, "w.grad"), "@[_, _]");
}

TEST_F(InsertReshardsTest, SumsAreAddedBeforeTheyAreReduced) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=2]
graph g {
  %x = input : f32[4, 8] @[_, tp]
  %v = parameter : f32[8, 4] @[tp, _]
  %w = parameter : f32[8, 4] @[tp, _]
  %a = matmul(%x, %v) : f32[4, 4]
  %b = matmul(%x, %w) : f32[4, 4]
  %y = add(%a, %b) : f32[4, 4]
  return %y @[_, _]
})");
  EXPECT_THAT(Statements(graph, "all_reduce"),
              ElementsAre("%y = all_reduce(%y.local) : f32[4, 4] @[_, _]"));
}

TEST_F(InsertReshardsTest, ASumIsReducedBeforeWhatIsNotLinear) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=2]
graph g {
  %x = input : f32[4, 8] @[_, tp]
  %w = parameter : f32[8, 4] @[tp, _]
  %a = matmul(%x, %w) : f32[4, 4]
  %y = tanh(%a) : f32[4, 4]
  return %y @[_, _]
})");
  EXPECT_THAT(Statements(graph, "all_reduce"),
              ElementsAre("%a = all_reduce(%a.local) : f32[4, 4] @[_, _]"));
}

TEST_F(InsertReshardsTest, ASumOfTwoReadersIsReducedOnce) {
  const graph::Graph graph = Lower(R"(mesh m = [tp=2]
graph g {
  %x = input : f32[4, 8] @[_, tp]
  %w = parameter : f32[8, 4] @[tp, _]
  %a = matmul(%x, %w) : f32[4, 4]
  %y = neg(%a) : f32[4, 4]
  %z = tanh(%a) : f32[4, 4]
  return %y @[_, _], %z @[_, _]
})");
  EXPECT_THAT(Statements(graph, "all_reduce"), SizeIs(1));
}

TEST_F(InsertReshardsTest, GradientsAreAccumulatedInTimeBeforeSpace) {
  const graph::Graph graph = Lower(Differentiate(MustParse(R"(mesh m = [mb=4 temporal, dp=2]
graph g {
  %x = input : f32[16, 4] @[mb.dp, _]
  %w = parameter : f32[4, 4]
  %y = matmul(%x, %w) : f32[16, 4]
  %loss = sum_squares(%y) : f32[]
  return %loss
})")));
  EXPECT_THAT(Statements(graph, "accumulate"), SizeIs(2));  // the loss, dw
  EXPECT_THAT(Statements(graph, "all_reduce"), SizeIs(2));
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->name() != "all_reduce") continue;
    const graph::Node& producer = graph.node(graph.value(node.operands[0]).producer);
    EXPECT_EQ(producer.op->name(), "accumulate");
  }
}

TEST_F(InsertReshardsTest, AParameterIsHeldWholeInTime) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal, dp=2]
graph g {
  %w = parameter : f32[8, 4] @[dp.mb, _]
  %x = input : f32[8, 4] @[dp.mb, _]
  %y = add(%x, %w) : f32[8, 4]
  return %y
})");
  EXPECT_EQ(ShardingOf(graph, "w"), "@[dp, _]");
  EXPECT_THAT(Statements(graph, "local_slice"),
              ElementsAre("%w_1 = local_slice(%w) : f32[8, 4] @[dp.mb, _]"));
}

TEST_F(InsertReshardsTest, TiedWeightsOverTwoStagesMeetWhereTheyLive) {
  const graph::Graph graph = Lower(Differentiate(MustParse(R"(mesh m = [mb=2 temporal, dp=2]
graph tied {
  %ids = input : i64[8] @[mb.dp] stage 0
  %table = parameter : f32[16, 4] stage 0
  %x = embedding(%table, %ids) : f32[8, 4] stage 0
  %h = tanh(%x) : f32[8, 4] stage 0
  %logits = matmul(%h, %table) {transpose_b=true} : f32[8, 16] stage 1
  %loss = sum_squares(%logits) : f32[] stage 1
  return %loss
})")));
  // Each stage accumulates its own term over the micro-batches; their sum is reduced once.
  const graph::NodeId sum = graph.value(graph.returns()[1].value).producer;
  EXPECT_EQ(graph.node(sum).op->name(), "all_reduce");
  EXPECT_EQ(graph.node(sum).stage, 0);
  EXPECT_THAT(Statements(graph, "accumulate"), SizeIs(3));  // the loss and two terms
  EXPECT_THAT(Statements(graph, "all_reduce"), SizeIs(2));
}

TEST_F(InsertReshardsTest, AReturnGoesWhereItIsAskedFor) {
  const graph::Graph graph = Lower(R"(mesh m = [a=2]
graph g {
  %x = input : f32[8, 8] @[a, _]
  %y = neg(%x) : f32[8, 8] @[a, _]
  return %y @[_, a]
})");
  EXPECT_THAT(Statements(graph, "all_to_all"), SizeIs(1));
  EXPECT_EQ(ToString(graph.meshes()[0], *graph.returns()[0].sharding), "@[_, a]");
}

TEST_F(InsertReshardsTest, TheNewValueComesToWhereTheStateIsKept) {
  const graph::Graph graph = InsertReshards(MustParse(R"(mesh m = [a=2]
graph g {
  %s = state : f32[8, 8] @[a, _]
  %x = input : f32[8, 8] @[_, a]
  assign(%s, %x)
})"));
  EXPECT_THAT(Statements(graph, "reshard"), ElementsAre("%x_1 = reshard(%x) : f32[8, 8] @[a, _]"));
}

TEST_F(InsertReshardsTest, AGradientInPartsIsScattered) {
  // Summed over micro-batches first, once a step.
  const graph::Graph once = Lower(R"(mesh m = [mb=4 temporal, dp=2]
graph g {
  %x = input : f32[16, 4] @[mb.dp, _]
  %y = input : f32[16, 8] @[mb.dp, _]
  %g = matmul(%x, %y) {transpose_a=true} : f32[4, 8] @[dp, _]
  %n = neg(%g) : f32[4, 8]
  return %n @[dp, _]
})");
  EXPECT_THAT(Statements(once, "accumulate"), SizeIs(1));
  EXPECT_THAT(Statements(once, "reduce_scatter"),
              ElementsAre("%g = reduce_scatter(%g.accumulate) : f32[4, 8] @[dp, _]"));
  // Asked for as a sum over micro-batches: each scatters its terms, whose parts are summed.
  const graph::Graph often = Lower(R"(mesh m = [mb=4 temporal, dp=2]
graph g {
  %x = input : f32[16, 4] @[mb.dp, _]
  %y = input : f32[16, 8] @[mb.dp, _]
  %g = matmul(%x, %y) {transpose_a=true} : f32[4, 8] @[dp, _] partial(sum, mb)
  %n = neg(%g) : f32[4, 8]
  return %n @[dp, _]
})");
  EXPECT_THAT(Statements(often, "reduce_scatter"),
              ElementsAre("%g = reduce_scatter(%g.local) : f32[4, 8] @[dp, _] partial(sum, mb)"));
  EXPECT_THAT(Statements(often, "accumulate"),
              ElementsAre("%g.sum = accumulate(%g) : f32[4, 8] @[dp, _]"));
}

TEST_F(InsertReshardsTest, ASumOverMicrobatchesThatIsNoneIsNotMade) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=4 temporal, dp=2]
graph g {
  %w = parameter : f32[4, 8]
  %g = neg(%w) : f32[4, 8] @[dp, _] partial(sum, mb)
  return %g @[dp, _]
})");
  EXPECT_THAT(Statements(graph, "accumulate"), IsEmpty());
}

TEST_F(InsertReshardsTest, GradientsOfATiedWeightAreAddedBeforeTheyAreScattered) {
  const graph::Graph graph = Lower(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[16, 4] @[dp, _]
  %y = input : f32[16, 8] @[dp, _]
  %z = input : f32[16, 8] @[dp, _]
  %a = matmul(%x, %y) {transpose_a=true} : f32[4, 8]
  %b = matmul(%x, %z) {transpose_a=true} : f32[4, 8]
  %g = add(%a, %b) : f32[4, 8] @[dp, _]
  return %g @[dp, _]
})");
  EXPECT_THAT(Statements(graph, "reduce_scatter"),
              ElementsAre("%g = reduce_scatter(%g.local) : f32[4, 8] @[dp, _]"));
}

TEST_F(InsertReshardsTest, ScalarsOfAnyLayoutAreAddedBeforeTheyAreReduced) {
  const graph::Graph graph = Lower(R"(mesh m = [dp=2, tp=2]
graph g {
  %x = input : f32[8, 4] @[dp, tp]
  %y = input : f32[8, 4] @[_, tp]
  %z = input : f32[8, 4] @[_, _]
  %a = sum_squares(%x) : f32[]
  %b = sum_squares(%y) : f32[]
  %c = sum_squares(%z) : f32[]
  %ab = add(%a, %b) : f32[]
  %abc = add(%ab, %c) : f32[]
  %norm = sqrt(%abc) : f32[]
  return %norm
})");
  EXPECT_THAT(Statements(graph, "all_reduce"),
              ElementsAre("%abc = all_reduce(%abc.local) : f32[] @[]"));
}

TEST_F(InsertReshardsTest, AParameterCanBeGatheredInEachPhaseThatReadsIt) {
  const graph::Graph graph = Lower(Differentiate(MustParse(R"(mesh m = [mb=2 temporal, dp=2]
graph g {
  %x = input : f32[32, 4] @[mb.dp, _]
  %v = parameter {per_use=true} : f32[4, 4] @[dp p1, _]
  %w = parameter {per_use=true} : f32[4, 4] @[dp p1, _]
  %h = matmul(%x, %v) : f32[32, 4]
  %i = matmul(%h, %w) : f32[32, 4]
  %j = matmul(%i, %w) : f32[32, 4]
  %loss = sum_squares(%j) : f32[]
  return %loss
})")));
  // Backward does not read %v: the gradient of %x is not asked for.
  EXPECT_THAT(
      Statements(graph, "all_gather"),
      ElementsAre("%v_1 = all_gather(%v) {per_use=true} : f32[4, 4] @[_, _]",
                  "%w_1 = all_gather(%w) {per_use=true} : f32[4, 4] @[_, _]",
                  "%w_2 = all_gather(%w) {per_use=true} : f32[4, 4] @[_, _] phase backward"));
}

TEST_F(InsertReshardsTest, WhatIsGatheredForwardIsGatheredAgainBackward) {
  const graph::Graph graph = Lower(Differentiate(MustParse(R"(mesh m = [tp=2]
graph g {
  %x = input : f32[4, 32] @[tp p1, _]
  %y = neg(%x) : f32[4, 32]
  %w = parameter : f32[32, 64] @[_, tp]
  %z = matmul(%y, %w) : f32[4, 64]
  %loss = sum_squares(%z) : f32[]
  return %loss
})")));
  EXPECT_THAT(Statements(graph, "all_gather"),
              ElementsAre("%y_1 = all_gather(%y) : f32[4, 32] @[_, _]",
                          "%y_2 = all_gather(%y) : f32[4, 32] @[_, _] phase weight_backward"));
}

}  // namespace
}  // namespace penstock::planner
