#include "planner/draw/drawn_graph.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "planner/draw/draw_graph.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class DrawnGraphTest : public testing::PlannerFixture {
 protected:
  static DrawnGraph MustDraw(const graph::Graph& graph) {
    absl::StatusOr<DrawnGraph> drawn = ToDraw(graph);
    EXPECT_TRUE(drawn.ok()) << drawn.status();
    return drawn.ok() ? *std::move(drawn) : DrawnGraph();
  }

  // "matmul -> gelu: all_reduce 128".
  static std::vector<std::string> Edges(const DrawnGraph& drawn) {
    std::vector<std::string> texts;
    const auto name = [&](int box) {
      const DrawnBox& b = drawn.boxes[static_cast<size_t>(box)];
      return b.is_junction ? StrCat("(", b.op, ")") : b.op;
    };
    for (const DrawnEdge& edge : drawn.edges) {
      texts.push_back(StrCat(name(edge.from), " -> ", name(edge.to)));
      if (!edge.label.empty()) StrAppend(&texts.back(), ": ", edge.label, " ", edge.bytes);
    }
    return texts;
  }

  graph::Graph TrainGpt(std::string_view strategy, int64_t layers, int64_t microbatches = 1) const {
    graph::ModelConfig config;
    config.layers = layers;
    config.width = 64;
    config.heads = 4;
    config.context = 32;
    config.dropout = 0;
    const graph::ModelRegistry models = graph::BuiltinModels();
    const graph::Model& gpt = *models.FindModel("gpt");
    graph::Graph forward = *graph::BuildModelGraph(ops_, gpt, config, graph::ModelUse::kTrain, 16);
    graph::Graph graph = *graph::BuildTrainingGraph(ops_, std::move(forward), {});
    const Strategy parsed = **ParseStrategy(strategy);
    EXPECT_TRUE(ApplyStrategy(parsed, microbatches, gpt.tensor_splits, graph).ok());
    EXPECT_TRUE(AssignStages(parsed.num_stages(), graph).ok());
    return graph;
  }
};

TEST_F(DrawnGraphTest, RedistributionsAreOnEdges) {
  const DrawnGraph drawn = MustDraw(Lower(R"(mesh m = [tp=2]
graph g {
  %x = input : f32[8, 16] @[_, tp]
  %w = parameter : f32[16, 4] @[tp, _]
  %y = matmul(%x, %w) : f32[8, 4] @[_, _]
  %a = gelu(%y) : f32[8, 4]
  %b = add(%y, %a) : f32[8, 4]
  return %b @[_, _]
})"));
  // 32 elements: a device gets the terms of 16 and then the other 16.
  EXPECT_THAT(Edges(drawn),
              ElementsAre("input -> matmul", "matmul -> (all_reduce): all_reduce 128",
                          "(all_reduce) -> gelu", "(all_reduce) -> add", "gelu -> add"));
  EXPECT_EQ(drawn.boxes[1].name, "y.local");
  EXPECT_EQ(drawn.boxes[1].title, "%y.local = matmul(%x, %w) : f32[8, 4] @[_, _] partial(sum, tp)");
}

TEST_F(DrawnGraphTest, OneReaderNeedsNoJunction) {
  EXPECT_THAT(Edges(MustDraw(Lower(R"(mesh m = [d=4]
graph g {
  %x = input : f32[16, 6] @[d, _]
  %y = slice(%x) {start=[1, 0], limit=[16, 6]} : f32[15, 6] @[d, _]
  return %y @[d, _]
})"))),
              ElementsAre("input -> slice: halo_exchange 24"));
}

TEST_F(DrawnGraphTest, WhatCrossesStagesIsSentOnce) {
  graph::Graph graph = MustParse(R"(mesh m = [d=2]
graph g {
  %x = input : f32[8] @[d] stage 0
  %y = neg(%x) : f32[8] stage 0
  %a = exp(%y) : f32[8] stage 1
  %b = add(%a, %y) : f32[8] stage 1
  return %b
})");
  const DrawnGraph drawn = MustDraw(Lower(std::move(graph)));
  EXPECT_EQ(drawn.num_stages, 2);
  EXPECT_THAT(Edges(drawn),
              ElementsAre("input -> neg", "neg -> exp: send 16", "exp -> add", "neg -> add"));
}

TEST_F(DrawnGraphTest, AParameterIsDrawnWhereItIsRedistributed) {
  EXPECT_THAT(Edges(MustDraw(Lower(R"(mesh m = [d=2]
graph g {
  %w = parameter : f32[8] @[d]
  %v = parameter : f32[8] @[_]
  %g = reshard(%w) : f32[8] @[_]
  %y = add(%g, %v) : f32[8] @[_]
  return %y @[_]
})"))),
              UnorderedElementsAre("parameter -> add: all_gather 16"));
}

// The bytes on all edges, as often as they count, are those of the plan's collectives and
// transfers.
TEST_F(DrawnGraphTest, BytesAreThoseOfThePlan) {
  for (const char* strategy : {"dp=2,tp=2", "tp=2,pp=2", "dp=2,zero=1", "dp=4,pp=2"}) {
    for (const int64_t layers : {1, 8}) {  // in full and folded
      const graph::Graph graph = TrainGpt(strategy, layers);
      CompileOptions options = OptionsFor("1f1b");
      options.bucket_bytes = 0;
      const absl::StatusOr<Plan> plan = planner::Compile(ops_, graph, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      std::map<std::string, int64_t> planned;
      for (const CollectiveSpec& spec : plan->collectives) {
        int64_t most = 0;
        for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
          most = std::max(most, ReceivedBytes(spec, static_cast<int>(rank)));
        }
        planned[std::string(Name(spec.kind))] += most * static_cast<int64_t>(spec.devices.size());
      }
      for (const TransferPlan& transfer : plan->transfers) {
        planned["send"] += static_cast<int64_t>(transfer.num_bytes);
      }
      graph::Graph lowered = graph;
      const absl::Status status = planner::RunPasses(planner::CompilePasses(ops_), {}, &lowered);
      ASSERT_TRUE(status.ok()) << status;
      const DrawnGraph drawn = MustDraw(lowered);
      const int64_t devices = static_cast<int64_t>(plan->devices.size()) / drawn.num_stages;
      std::map<std::string, int64_t> shown;
      for (const DrawnEdge& edge : drawn.edges) {
        if (!edge.label.empty()) shown[edge.label] += edge.count * edge.bytes * devices;
      }
      int64_t all_planned = 0;
      int64_t all_shown = 0;
      for (const auto& [name, bytes] : planned) all_planned += bytes;
      for (const auto& [name, bytes] : shown) all_shown += bytes;
      EXPECT_EQ(all_shown, all_planned) << strategy << " " << layers;
      EXPECT_EQ(shown["all_reduce"], planned["all_reduce"]) << strategy << " " << layers;
    }
  }
}

// Layers of one stage are one; the number of boxes does not grow with theirs.
TEST_F(DrawnGraphTest, RepeatedLayersAreDrawnOnceAStage) {
  const DrawnGraph few = MustDraw(Lower(TrainGpt("dp=2,pp=2", 12)));
  const DrawnGraph many = MustDraw(Lower(TrainGpt("dp=2,pp=2", 32)));
  EXPECT_EQ(few.boxes.size(), many.boxes.size());
  EXPECT_LT(few.boxes.size(), 160u);
  int most = 0;
  std::set<int> stages;
  for (const DrawnBox& box : many.boxes) {
    stages.insert(box.stage);
    if (box.op == "qkv_attention") most = std::max(most, box.count);
  }
  EXPECT_GE(most, 14);
  EXPECT_THAT(stages, ElementsAre(0, 1));
}

TEST_F(DrawnGraphTest, ADrawingOfManyLayersStaysSmall) {
  const absl::StatusOr<std::string> svg =
      DrawGraph(Lower(TrainGpt("dp=2,tp=2,pp=8", 96, 4)), "many layers");
  ASSERT_TRUE(svg.ok()) << svg.status();
  EXPECT_LT(svg->size(), 1u << 20);
}

TEST_F(DrawnGraphTest, BoxesStandForAllNodesThatCompute) {
  const graph::Graph graph = Lower(TrainGpt("dp=2,tp=2,pp=2", 12));
  const DrawnGraph drawn = MustDraw(graph);
  std::map<std::string, int> shown;
  for (const DrawnBox& box : drawn.boxes) shown[box.op] += box.count;
  const std::map<std::string, int> counts = CountOps(graph);
  for (const char* op : {"matmul", "einsum", "layer_norm", "layer_norm_grad", "qkv_attention",
                         "qkv_attention_grad", "adamw", "bias_gelu_grad"}) {
    EXPECT_EQ(shown[op], counts.at(op)) << op;
  }
}

}  // namespace
}  // namespace penstock::planner
