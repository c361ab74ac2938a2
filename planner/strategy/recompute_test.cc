#include "planner/strategy/recompute.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/gradients.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

class RecomputeTest : public ::testing::Test {
 protected:
  graph::Graph Gradients(const std::string& text) {
    absl::StatusOr<graph::Graph> forward = graph::ParseGraph(text, "g.pst", ops_);
    EXPECT_TRUE(forward.ok()) << forward.status();
    absl::StatusOr<graph::Graph> graph = graph::AddGradients(ops_, *forward);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

  // Names of the clones, in order, with the phases B or W.
  static std::vector<std::string> ClonesOf(const graph::Graph& graph) {
    std::vector<std::string> names;
    for (const graph::Node& node : graph.nodes()) {
      if (node.results.empty()) continue;
      const std::string& name = graph.value(node.results[0]).name;
      const size_t end = name.find(".recomputed");
      if (end == std::string::npos) continue;
      names.push_back(name.substr(0, end) + (node.phase == graph::Phase::kBackward ? " B" : " W"));
    }
    return names;
  }

  std::vector<std::string> Clones(graph::Graph graph) {
    EXPECT_TRUE(AddRecomputation(graph).ok());
    EXPECT_TRUE(graph::VerifyGraph(graph).ok()) << graph::VerifyGraph(graph);
    for (const graph::Node& node : graph.nodes()) {
      EXPECT_EQ(node.attributes.Find("recompute"), nullptr);
    }
    return ClonesOf(graph);
  }

  static void Mark(graph::Graph& graph, const std::string& value, int64_t segment) {
    const graph::NodeId producer = graph.value(graph.FindValue(value)).producer;
    graph.mutable_node(producer).attributes.Set("recompute", segment);
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

// Three layers of a product and an activation function, and a loss.
constexpr char kLayers[] = R"(graph g {
  %x = input : f32[8, 16]
  %w1 = parameter : f32[16, 16]
  %p1 = matmul(%x, %w1) : f32[8, 16]
  %h1 = gelu(%p1) : f32[8, 16]
  %w2 = parameter : f32[16, 16]
  %p2 = matmul(%h1, %w2) : f32[8, 16]
  %h2 = gelu(%p2) : f32[8, 16]
  %w3 = parameter : f32[16, 16]
  %p3 = matmul(%h2, %w3) : f32[8, 16]
  %h3 = gelu(%p3) : f32[8, 16]
  %loss = reduce_mean(%h3) {axes=[0, 1]} : f32[]
  return %loss
}
)";

TEST_F(RecomputeTest, TheExampleOfTheHeader) {
  graph::Graph graph = Gradients(kLayers);
  for (const auto& [value, segment] : {std::pair("p1", 1), {"h1", 1}, {"p2", 2}, {"h2", 2}}) {
    Mark(graph, value, segment);
  }
  // The third layer keeps its product; the others' inputs are kept, last layers first.
  EXPECT_THAT(Clones(graph), ElementsAre("p2 B", "p1 B"));
}

TEST_F(RecomputeTest, FullMakesEachLayerASegment) {
  graph::Graph graph = Gradients(kLayers);
  MarkRecompute(Recompute::kFull, graph);
  EXPECT_THAT(Clones(graph), ElementsAre("p3 B", "p2 B", "p1 B"));
}

// The gradients of the weights alone read the results of the activation functions; their operands
// are kept for gelu's gradient.
TEST_F(RecomputeTest, SelectiveRecomputesActivationFunctions) {
  graph::Graph graph = Gradients(kLayers);
  MarkRecompute(Recompute::kSelective, graph);
  EXPECT_THAT(Clones(graph), ElementsAre("h2 W", "h1 W"));
}

TEST_F(RecomputeTest, CloneForBothPhasesIsOfTheFirst) {
  graph::Graph graph = Gradients(R"(graph g {
  %x = input : f32[8, 16]
  %w1 = parameter : f32[16, 16]
  %p1 = matmul(%x, %w1) : f32[8, 16]
  %h1 = gelu(%p1) : f32[8, 16]
  %s1 = mul(%h1, %p1) : f32[8, 16]
  %w2 = parameter : f32[16, 16]
  %p2 = matmul(%s1, %w2) : f32[8, 16]
  %loss = reduce_mean(%p2) {axes=[0, 1]} : f32[]
  return %loss
}
)");
  for (const char* value : {"p1", "h1", "s1"}) Mark(graph, value, 0);
  // s1 is for the gradient of w2, h1 for it and for that of p1.
  EXPECT_THAT(Clones(graph), ElementsAre("p1 B", "h1 B", "s1 W"));
}

TEST_F(RecomputeTest, StagesKeepTheirInputs) {
  graph::Graph graph = Gradients(kLayers);
  for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) graph.mutable_node(id).stage = 0;
  const auto set_stage = [&](graph::NodeId id) {
    graph::Node& node = graph.mutable_node(id);
    const std::string name = node.results.empty() ? "" : graph.value(node.results[0]).name;
    if (name == "p1") node.stage = 1;
  };
  for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) set_stage(id);
  for (const char* value : {"p1", "h1", "p2"}) Mark(graph, value, 0);
  // p1 is of another stage than the node that reads it; h1 is for p2 and for the gradient of w2.
  EXPECT_THAT(Clones(graph), ElementsAre("h1 B", "p2 B"));
}

TEST_F(RecomputeTest, WithoutLayersTheGraphIsCut) {
  std::string text = "graph g {\n  %w = parameter : f32[4]\n  %v0 = exp(%w) : f32[4]\n";
  const char* const names[] = {"tanh", "square", "exp",  "sin", "cos",  "neg", "sigmoid", "relu",
                               "abs",  "silu",   "gelu", "sin", "tanh", "exp", "square"};
  int count = 0;
  for (const char* name : names) {
    text += "  %v" + std::to_string(count + 1) + " = " + name + "(%v" + std::to_string(count) +
            ") : f32[4]\n";
    ++count;
  }
  text += "  %loss = reduce_mean(%v15) {axes=[0]} : f32[]\n  return %loss\n}\n";
  const std::vector<int> segments = RecomputeSegments(Gradients(text));
  // 17 operators: 4 segments, contiguous.
  int last = 0;
  for (const int segment : segments) {
    if (segment == 0) continue;
    EXPECT_TRUE(segment == last || segment == last + 1);
    last = segment;
  }
  EXPECT_EQ(last, 4);
}

}  // namespace
}  // namespace penstock::planner
