#include "planner/strategy/repeated_layers.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/op.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::planner {
namespace {

class RepeatedLayersTest : public ::testing::Test {
 protected:
  graph::Graph Parse(const std::string& text) {
    absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, "g.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : graph::Graph();
  }

  graph::Graph Gpt(int64_t layers) {
    const graph::Model& gpt = *models_.FindModel("gpt");
    graph::ModelConfig config;
    config.layers = layers;
    config.width = 32;
    return *graph::BuildModelGraph(ops_, gpt, config, graph::ModelUse::kTrain, 8);
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const graph::ModelRegistry models_ = graph::BuiltinModels();
};

constexpr char kExample[] = R"(graph g {
  %t0 = input : f32[8]
  %t1 = exp(%t0) : f32[8]
  %a0 = tanh(%t1) : f32[8]
  %b0 = square(%a0) : f32[8]
  %a1 = tanh(%b0) : f32[8]
  %b1 = square(%a1) : f32[8]
  %a2 = tanh(%b1) : f32[8]
  %b2 = square(%a2) : f32[8]
  %a3 = tanh(%b2) : f32[8]
  %b3 = square(%a3) : f32[8]
  %u = log(%b3) : f32[8]
  return %u
}
)";

TEST_F(RepeatedLayersTest, TheExampleOfTheHeader) {
  const graph::Graph graph = Parse(kExample);
  const RepeatedLayers layers = FindRepeatedLayers(graph, {}, 4);
  EXPECT_EQ(layers, (RepeatedLayers{2, 2, 4}));
  const graph::Graph three = WithCopies(graph, layers, 3);
  EXPECT_EQ(graph::PrintGraph(three), R"(graph g {
  %t0 = input : f32[8]
  %t1 = exp(%t0) : f32[8]
  %a0 = tanh(%t1) : f32[8]
  %b0 = square(%a0) : f32[8]
  %a1 = tanh(%b0) : f32[8]
  %b1 = square(%a1) : f32[8]
  %a2 = tanh(%b1) : f32[8]
  %b2 = square(%a2) : f32[8]
  %u = log(%b2) : f32[8]
  return %u
}
)");
  EXPECT_EQ(FindRepeatedLayers(graph, {}, 5), RepeatedLayers());
}

TEST_F(RepeatedLayersTest, ALayerThatDiffersEndsTheRun) {
  std::string text = kExample;
  text.replace(text.find("%a1 = tanh"), 10, "%a1 = relu");
  EXPECT_EQ(FindRepeatedLayers(Parse(text), {}, 3), RepeatedLayers());
  EXPECT_EQ(FindRepeatedLayers(Parse(text), {}, 2).num_copies, 2);
}

TEST_F(RepeatedLayersTest, WhatReadsAnEarlyLayerKeepsThemAll) {
  std::string text = kExample;
  text.replace(text.find("%u = log(%b3)"), 13, "%u = add(%b3, %b0)");
  EXPECT_EQ(FindRepeatedLayers(Parse(text), {}, 4), RepeatedLayers());
}

TEST_F(RepeatedLayersTest, AHintForOneLayerTellsItApart) {
  const graph::Graph graph = Gpt(8);
  EXPECT_EQ(FindRepeatedLayers(graph, {{"h*.mlp.w1", 1, "hidden units"}}, 4).num_copies, 8);
  EXPECT_LT(FindRepeatedLayers(graph, {{"h4.mlp.w1", 1, "hidden units"}}, 4).num_copies, 8);
}

// With fewer copies, a model is the model with fewer layers.
TEST_F(RepeatedLayersTest, AGptOfFewerLayers) {
  const graph::Graph eight = Gpt(8);
  const std::vector<graph::SplitHint>& hints = models_.FindModel("gpt")->tensor_splits;
  const RepeatedLayers layers = FindRepeatedLayers(eight, hints, 4);
  EXPECT_EQ(layers.num_copies, 8);
  const graph::Graph three = WithCopies(eight, layers, 3);
  EXPECT_TRUE(graph::VerifyGraph(three).ok());
  const graph::Graph expected = Gpt(3);
  ASSERT_EQ(three.num_nodes(), expected.num_nodes());
  for (graph::NodeId id = 0; id < three.num_nodes(); ++id) {
    const graph::Node& a = three.node(id);
    const graph::Node& b = expected.node(id);
    EXPECT_EQ(a.op, b.op);
    EXPECT_EQ(a.operands, b.operands);
    EXPECT_EQ(three.ResultTypes(a), expected.ResultTypes(b));
  }
}

// What comes before and behind the longest run may repeat, too; single operators do not count.
TEST_F(RepeatedLayersTest, ModelsMayHaveSeveralRuns) {
  std::string text = kExample;
  const size_t u = text.find("  %u = log");
  std::string more;
  for (int i = 0; i < 6; ++i) {
    const std::string before = i == 0 ? "b3" : "d" + std::to_string(i - 1);
    const std::string n = std::to_string(i);
    more += "  %c" + n + " = log(%" + before + ") : f32[8]\n";
    more += "  %d" + n + " = add(%c" + n + ", %b3) : f32[8]\n";
  }
  for (int i = 0; i < 5; ++i) {
    const std::string before = i == 0 ? "d5" : "r" + std::to_string(i - 1);
    more += "  %r" + std::to_string(i) + " = relu(%" + before + ") : f32[8]\n";
  }
  text.insert(u, more);
  text.replace(text.find("%u = log(%b3)"), 13, "%u = log(%r4)");
  const graph::Graph graph = Parse(text);
  const std::vector<RepeatedLayers> runs = FindRepeatedRuns(graph, {}, 4);
  EXPECT_EQ(runs, (std::vector<RepeatedLayers>{{2, 2, 4}, {10, 2, 6}}));
  const graph::Graph three = WithCopies(graph, runs, 3);
  EXPECT_TRUE(graph::VerifyGraph(three).ok());
  EXPECT_EQ(three.num_nodes(), graph.num_nodes() - 2 - 6);
  EXPECT_NE(graph::PrintGraph(three).find("%d2 = add(%c2, %b2)"), std::string::npos);
}

TEST_F(RepeatedLayersTest, SmallLayersInPairs) {
  EXPECT_EQ(InPairs({3, 3, 9}), (RepeatedLayers{3, 6, 4}));
  EXPECT_EQ(InPairs({3, 3, 7}), RepeatedLayers());
  EXPECT_EQ(InPairs({3, 30, 7}), (RepeatedLayers{3, 30, 7}));
}

}  // namespace
}  // namespace penstock::planner
