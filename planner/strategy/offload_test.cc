#include "planner/strategy/offload.h"

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
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class OffloadTest : public ::testing::Test {
 protected:
  graph::Graph Parse(const std::string& text) {
    absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, "g.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  graph::Graph Gradients(const std::string& text) {
    absl::StatusOr<graph::Graph> graph = graph::AddGradients(ops_, Parse(text));
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

  graph::Graph Offloaded(graph::Graph graph) {
    EXPECT_TRUE(AddOffload(ops_, graph).ok());
    EXPECT_TRUE(graph::VerifyGraph(graph).ok()) << graph::VerifyGraph(graph);
    for (const graph::Node& node : graph.nodes()) {
      EXPECT_EQ(node.attributes.Find("offload"), nullptr);
    }
    return graph;
  }

  // "result = op(operands)" of every node that reads or makes a copy.
  static std::vector<std::string> Copies(const graph::Graph& graph) {
    std::vector<std::string> lines;
    for (const graph::Node& node : graph.nodes()) {
      std::string line = node.results.empty() ? "" : graph.value(node.results[0]).name + " = ";
      line += std::string(node.op->name()) + "(";
      for (const graph::ValueId operand : node.operands) {
        if (line.back() != '(') line += ", ";
        line += graph.value(operand).name;
      }
      line += ")";
      if (line.find("to_") != std::string::npos) lines.push_back(line);
    }
    return lines;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

constexpr char kUpdate[] = R"(graph g {
  %g = input : f32[8]
  %lr = constant {value=0.1} : f32[]
  %s = constant {value=1.0} : f32[]
  %w = parameter : f32[8]
  %m = state {memory="host"} : f32[8]
  %w1, %m1 = sgd(%w, %g, %lr, %s, %m) {momentum=0.9} : f32[8], f32[8]
  assign(%w, %w1)
  assign(%m, %m1)
}
)";

TEST_F(OffloadTest, StatesAreCopiedWhereTheyAreUpdated) {
  EXPECT_THAT(Copies(Offloaded(Parse(kUpdate))),
              ElementsAre("m.to_device = to_device(m)", "w1 = sgd(w, g, lr, s, m.to_device)",
                          "m1.to_host = to_host(m1)", "assign(m, m1.to_host)"));
}

// Each copy but the first overlaps the update before its own; there are never more than two.
TEST_F(OffloadTest, WhatIsReadNextIsCopiedBeforeTheNodeBeforeComputes) {
  EXPECT_THAT(Copies(Offloaded(Parse(R"(graph g {
  %g = input : f32[8]
  %lr = constant {value=0.1} : f32[]
  %s = constant {value=1.0} : f32[]
  %u = parameter : f32[8]
  %v = parameter : f32[8]
  %w = parameter : f32[8]
  %a = state {memory="host"} : f32[8]
  %b = state {memory="host"} : f32[8]
  %c = state {memory="host"} : f32[8]
  %u1, %a1 = sgd(%u, %g, %lr, %s, %a) {momentum=0.9} : f32[8], f32[8]
  %v1, %b1 = sgd(%v, %g, %lr, %s, %b) {momentum=0.9} : f32[8], f32[8]
  %w1, %c1 = sgd(%w, %g, %lr, %s, %c) {momentum=0.9} : f32[8], f32[8]
  assign(%u, %u1)
  assign(%v, %v1)
  assign(%w, %w1)
  assign(%a, %a1)
  assign(%b, %b1)
  assign(%c, %c1)
}
)"))),
              ElementsAre("a.to_device = to_device(a)", "b.to_device = to_device(b)",
                          "u1 = sgd(u, g, lr, s, a.to_device)", "a1.to_host = to_host(a1)",
                          "c.to_device = to_device(c)", "v1 = sgd(v, g, lr, s, b.to_device)",
                          "b1.to_host = to_host(b1)", "w1 = sgd(w, g, lr, s, c.to_device)",
                          "c1.to_host = to_host(c1)", "assign(a, a1.to_host)",
                          "assign(b, b1.to_host)", "assign(c, c1.to_host)"));
}

TEST_F(OffloadTest, RefusesOtherMemories) {
  graph::Graph graph = Parse(kUpdate);
  graph.mutable_node(graph.value(graph.FindValue("m")).producer).attributes.Set("memory", "disk");
  EXPECT_THAT(std::string(AddOffload(ops_, graph).message()),
              HasSubstr("%m: memory is \"disk\", not \"device\" or \"host\""));
}

TEST_F(OffloadTest, NothingChangesWithoutMarks) {
  graph::Graph graph = Parse(kUpdate);
  graph.mutable_node(graph.value(graph.FindValue("m")).producer).attributes.Erase("memory");
  const std::string before = graph::PrintGraph(graph);
  EXPECT_EQ(graph::PrintGraph(Offloaded(graph)), before);
}

// Reads of several parts of a step, a copy of another state, and a result.
TEST_F(OffloadTest, EveryReaderReadsACopyOnTheDevice) {
  EXPECT_THAT(Copies(Offloaded(Parse(R"(graph g {
  %a = state {memory="host"} : f32[8]
  %b = state {memory="host"} : f32[8]
  %c = state : f32[8]
  %x = exp(%a) : f32[8]
  %y = neg(%a) : f32[8]
  assign(%b, %a)
  assign(%c, %a)
  return %x, %y, %b
}
)"))),
              ElementsAre("a.to_device = to_device(a)", "x = exp(a.to_device)",
                          "y = neg(a.to_device)", "a.to_device_1 = to_device(a)",
                          "a.to_host = to_host(a.to_device_1)", "assign(b, a.to_host)",
                          "assign(c, a.to_device_1)", "b.to_device = to_device(b)"));
}

TEST_F(OffloadTest, CopiesThatAreWrittenStay) {
  EXPECT_THAT(Copies(Offloaded(Parse(R"(graph g {
  %x = input : f32[8]
  %h = to_host(%x) : f32[8]
  %d = to_device(%h) : f32[8]
  %e = to_device(%d) : f32[8]
  %y = neg(%h) : f32[8]
  return %d, %e, %y
}
)"))),
              ElementsAre("h = to_host(x)", "d = to_device(h)", "h.to_device = to_device(h)",
                          "y = neg(h.to_device)"));
}

constexpr char kLayer[] = R"(graph g {
  %x = input : f32[8, 16]
  %w = parameter : f32[16, 64]
  %p = matmul(%x, %w) {offload=2048} : f32[8, 64]
  %q = reshape(%p) {shape=[4, 128]} : f32[4, 128]
  %h = gelu(%q) {offload=2049} : f32[4, 128]
  %k = square(%h) {offload=1} : f32[4, 128]
  %loss = reduce_mean(%k) {axes=[0, 1]} : f32[]
  return %loss
}
)";

// %p has the 2048 bytes that its mark asks for, and is read as %q; %h has too few; %x is fed again.
TEST_F(OffloadTest, AValueThatIsOnTheDeviceIsStoredLikeOthers) {
  EXPECT_THAT(Copies(Offloaded(Parse(R"(graph g {
  %x = input : f32[8]
  %y = to_device(%x) : f32[8]
  %m = state {memory="host"} : f32[8]
  assign(%m, %y)
}
)"))),
              ElementsAre("y.to_host = to_host(x)", "assign(m, y.to_host)"));
}

TEST_F(OffloadTest, WhatBackwardReadsGoesToTheHost) {
  const graph::Graph graph = Offloaded(Gradients(kLayer));
  EXPECT_THAT(
      Copies(graph),
      ElementsAre("p.to_host = to_host(p)", "p.to_device = to_device(p.to_host)",
                  "q.to_device = reshape(p.to_device)", HasSubstr("gelu_grad(q.to_device")));
  const auto phase_of = [&](const std::string& name) {
    return graph.node(graph.value(graph.FindValue(name)).producer).phase;
  };
  EXPECT_EQ(phase_of("p.to_host"), graph::Phase::kForward);
  EXPECT_EQ(phase_of("p.to_device"), graph::Phase::kBackward);
  EXPECT_EQ(phase_of("q.to_device"), graph::Phase::kBackward);
}

// Each stage whose backward pass reads the value keeps it itself: %h stages 0 and 1, and %a, which
// has no mark but its operand's, stage 1.
TEST_F(OffloadTest, EveryStageKeepsWhatItReads) {
  graph::Graph graph = Gradients(R"(graph g {
  %x = input : f32[8, 16]
  %w = parameter : f32[16, 16]
  %h = matmul(%x, %w) {offload=1} : f32[8, 16]
  %a = square(%h) : f32[8, 16]
  %v = parameter : f32[16, 16]
  %b = matmul(%h, %v) : f32[8, 16]
  %y = mul(%a, %b) : f32[8, 16]
  %loss = reduce_mean(%y) {axes=[0, 1]} : f32[]
  return %loss
}
)");
  for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const graph::Node& node = graph.node(id);
    const graph::NodeId forward = node.forward == graph::kNoNode ? id : node.forward;
    const bool is_early = forward <= graph.value(graph.FindValue("a")).producer;
    graph.mutable_node(id).stage = is_early ? 0 : 1;
  }
  const graph::Graph offloaded = Offloaded(graph);
  std::vector<int> stages;
  for (const graph::Node& node : offloaded.nodes()) {
    if (node.op->name() == "to_host") stages.push_back(node.stage);
  }
  EXPECT_THAT(stages, ElementsAre(0, 1, 1));
}

TEST_F(OffloadTest, MarksStatesOfTheOptimiserAndForwardNodes) {
  graph::Graph graph = Parse(R"(graph g {
  %g = input : f32[32, 32]
  %lr = constant {value=0.1} : f32[]
  %s = constant {value=1.0} : f32[]
  %w = parameter : f32[32, 32]
  %m = state : f32[32, 32]
  %small = state : f32[32, 31]
  %other = state : f32[32, 32]
  %y = mul(%g, %other) : f32[32, 32]
  %w1, %m1 = sgd(%w, %y, %lr, %s, %m) {momentum=0.9} : f32[32, 32], f32[32, 32]
  assign(%w, %w1)
  assign(%m, %m1)
}
)");
  const auto update = graph.value(graph.FindValue("w1")).producer;
  graph.mutable_node(update).phase = graph::Phase::kUpdate;
  graph::Graph states = graph;
  MarkOffload(Offload::kStates, states);
  const auto on_host = [](const graph::Graph& g) {
    std::vector<std::string> names;
    for (graph::ValueId value = 0; value < g.num_values(); ++value) {
      if (IsOnHost(g, value)) names.push_back(g.value(value).name);
    }
    return names;
  };
  EXPECT_THAT(on_host(states), ElementsAre("m"));
  EXPECT_THAT(graph::PrintGraph(states), Not(HasSubstr("offload")));
  graph::Graph activations = graph;
  MarkOffload(Offload::kActivations, activations);
  EXPECT_THAT(on_host(activations), IsEmpty());
  EXPECT_THAT(graph::PrintGraph(activations), HasSubstr("mul(%g, %other) {offload=4096}"));
  MarkOffload(Offload::kNone, graph);
  EXPECT_THAT(on_host(graph), IsEmpty());
}

TEST(OffloadNameTest, IsFoundByItsName) {
  for (const Offload offload :
       {Offload::kNone, Offload::kStates, Offload::kActivations, Offload::kAll}) {
    EXPECT_EQ(FindOffload(Name(offload)), offload);
  }
  EXPECT_EQ(FindOffload("everything"), std::nullopt);
}

}  // namespace
}  // namespace penstock::planner
