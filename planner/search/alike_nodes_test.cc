#include "planner/search/alike_nodes.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/training.h"

namespace penstock::planner {
namespace {

class AlikeNodesTest : public ::testing::Test {
 protected:
  graph::Graph Training(int64_t layers) {
    graph::ModelConfig config;
    config.layers = layers;
    config.width = 32;
    graph::Graph forward = *graph::BuildModelGraph(ops_, *models_.FindModel("gpt"), config,
                                                   graph::ModelUse::kTrain, 8);
    runs_ = FindRepeatedRuns(forward, {}, 4);
    return *graph::BuildTrainingGraph(ops_, std::move(forward), {});
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const graph::ModelRegistry models_ = graph::BuiltinModels();
  std::vector<RepeatedLayers> runs_;
};

TEST_F(AlikeNodesTest, GradientsUpdatesAndStatesFollowTheLayers) {
  const graph::Graph graph = Training(6);
  const std::vector<AlikeNode> nodes = FindAlikeNodes(graph, runs_);
  const auto copy_of = [&](const std::string& name) {
    for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) {
      for (const graph::ValueId result : graph.node(id).results) {
        if (graph.value(result).name == name) return nodes[id];
      }
    }
    ADD_FAILURE() << "no value " << name;
    return AlikeNode{};
  };
  for (const std::string name :
       {"attn.qkv_w", "attn.qkv", "attn.qkv_w.grad", "mlp.w1.m", "mlp.w1.v", "mlp.gelu.grad"}) {
    const AlikeNode second = copy_of("h1." + name);
    const AlikeNode fourth = copy_of("h3." + name);
    EXPECT_EQ(second.copy, 1) << name;
    EXPECT_EQ(fourth.copy, 3) << name;
    EXPECT_EQ(second.first, fourth.first) << name;
  }
  EXPECT_NE(copy_of("h1.mlp.w1.m").first, copy_of("h1.mlp.w1.v").first);
  EXPECT_NE(copy_of("h1.mlp.w1").first, copy_of("h1.mlp.w2").first);
  EXPECT_EQ(copy_of("wte").copy, -1);
  EXPECT_EQ(copy_of("logits").copy, -1);
}

// So as many different nodes are left, whatever the number of layers.
TEST_F(AlikeNodesTest, TheNumberOfKindsDoesNotGrowWithLayers) {
  const auto count = [&](int64_t layers) {
    const graph::Graph graph = Training(layers);
    std::set<graph::NodeId> kinds;
    // No two nodes of one copy are alike, and those that are look alike.
    std::set<std::pair<graph::NodeId, int>> seen;
    const std::vector<AlikeNode> nodes = FindAlikeNodes(graph, runs_);
    for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) {
      kinds.insert(nodes[id].first);
      if (nodes[id].copy < 0) continue;
      EXPECT_TRUE(seen.insert({nodes[id].first, nodes[id].copy}).second) << id;
      const graph::Node& first = graph.node(nodes[id].first);
      EXPECT_EQ(graph.node(id).op, first.op);
      EXPECT_EQ(graph.node(id).results.size(), first.results.size());
      EXPECT_EQ(graph.node(id).phase, first.phase);
    }
    return static_cast<int>(kinds.size());
  };
  const int with_six = count(6);
  // What clipping adds up by layer.
  EXPECT_LE(count(12), with_six + 6 * 20);
  EXPECT_LT(count(12), 2 * with_six);
}

TEST_F(AlikeNodesTest, WithoutRepeatedLayersEachNodeIsLikeItself) {
  const graph::Graph graph = Training(2);
  ASSERT_TRUE(runs_.empty());
  const std::vector<AlikeNode> nodes = FindAlikeNodes(graph, runs_);
  for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) {
    EXPECT_EQ(nodes[id], (AlikeNode{id, -1}));
  }
}

}  // namespace
}  // namespace penstock::planner
