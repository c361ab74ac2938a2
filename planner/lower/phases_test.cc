#include "planner/lower/phases.h"

#include <map>
#include <string>

#include "gmock/gmock.h"

#include "graph/training.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kTwoStages = R"(mesh m = [mb=2 temporal]
graph g {
  %x = input : f32[8, 4] @[mb, _] stage 0
  %w0 = parameter : f32[4, 4] stage 0
  %w1 = parameter : f32[4, 4] stage 1
  %h = matmul(%x, %w0) : f32[8, 4] stage 0
  %a = tanh(%h) : f32[8, 4] stage 0
  %y = matmul(%a, %w1) : f32[8, 4] stage 1
  %loss = sum_squares(%y) : f32[] stage 1
  return %loss
})";

class PhasesTest : public testing::PlannerFixture {
 protected:
  std::map<std::string, NodePhase> Phases(const graph::Graph& lowered, bool split = false) const {
    absl::StatusOr<std::vector<NodePhase>> phases =
        AssignPhases(lowered, {.split_weight_gradients = split});
    EXPECT_TRUE(phases.ok()) << phases.status();
    std::map<std::string, NodePhase> by_name;
    if (!phases.ok()) return by_name;
    for (graph::NodeId id = 0; id < lowered.num_nodes(); ++id) {
      for (graph::ValueId result : lowered.node(id).results) {
        by_name[lowered.value(result).name] = (*phases)[id];
      }
    }
    return by_name;
  }
};

TEST_F(PhasesTest, AForwardPassRunsOnceAMicrobatchAndItsSumOnceAStep) {
  const graph::Graph graph = Lower(R"(mesh m = [mb=2 temporal, dp=2]
graph g {
  %x = input : f32[8] @[mb.dp]
  %y = tanh(%x) : f32[8]
  %s = reduce_sum(%y) {axes=[0]} : f32[]
  %t = exp(%s) : f32[]
  return %t
})");
  const std::map<std::string, NodePhase> phases = Phases(graph);
  EXPECT_TRUE(phases.at("x").is_leaf);
  EXPECT_EQ(phases.at("y").key, (PhaseKey{0, true, 0}));
  EXPECT_EQ(phases.at("y").key.lane(), Lane::kCompute);
  EXPECT_EQ(phases.at("y").key.kind(), PhaseKind::kForward);
  // The sum is kept while micro-batches pass; reducing it over devices comes after the last.
  EXPECT_EQ(phases.at("s").key, (PhaseKey{1, false, 0}));
  EXPECT_EQ(phases.at("t").key, (PhaseKey{1, false, 0}));
  EXPECT_EQ(phases.at("t").key.lane(), Lane::kPerStep);
  EXPECT_EQ(phases.at("t").key.kind(), PhaseKind::kAfterStep);
}

TEST_F(PhasesTest, WithoutATemporalAxisForwardsAreStillAPhase) {
  const graph::Graph graph = Lower(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8] @[dp]
  %y = tanh(%x) : f32[8]
  return %y
})");
  EXPECT_EQ(Phases(graph).at("y").key, (PhaseKey{0, true, 0}));
  EXPECT_EQ(Phases(graph).at("y").key.kind(), PhaseKind::kForward);
}

// Of a parameter that is gathered per use. %d is cast whole, and %c is not.
TEST_F(PhasesTest, ACastRunsAsOftenAsWhatItReads) {
  for (const std::string axis : {"mb", "dp"}) {
    SCOPED_TRACE(axis);
    const std::string mesh = axis == "mb" ? "mesh m = [mb=2 temporal]" : "mesh m = [dp=2]";
    const graph::Graph graph = Lower(mesh + R"(
graph g {
  %v = parameter {per_use=true} : f32[8] @[_]
  %w = parameter {per_use=true} : f32[8] @[_]
  %c = cast(%v) {dtype=bf16, per_use=true} : bf16[8] @[)" +
                                     axis + R"(]
  %d = cast(%w) {dtype=bf16, per_use=true} : bf16[8] @[_]
  %y = add(%c, %d) : bf16[8] @[)" + axis +
                                     R"(]
  return %y
})");
    const std::map<std::string, NodePhase> phases = Phases(graph);
    EXPECT_EQ(phases.at("c").key, (PhaseKey{0, true, 0}));
    EXPECT_EQ(phases.at("d").key, (PhaseKey{0, false, 0}));
    EXPECT_EQ(phases.at("y").key, (PhaseKey{0, true, 0}));
  }
}

TEST_F(PhasesTest, DeadNodesAreNotLive) {
  const graph::Graph graph = MustParse(R"(mesh m = [a=2]
graph g {
  %x = input : f32[8] @[a]
  %y = tanh(%x) : f32[8] @[a]
  %z = exp(%x) : f32[8] @[a]
  return %y
})");
  EXPECT_TRUE(Phases(graph).at("y").is_live);
  EXPECT_FALSE(Phases(graph).at("z").is_live);
}

TEST_F(PhasesTest, BackwardsAndWeightGradientsAreToldApartWhereAsked) {
  const graph::Graph graph = Lower(Differentiate(MustParse(kTwoStages)));
  std::map<std::string, NodePhase> together = Phases(graph, false);
  std::map<std::string, NodePhase> apart = Phases(graph, true);
  EXPECT_EQ(together.at("a.grad").key, (PhaseKey{0, true, 1}));
  EXPECT_EQ(apart.at("a.grad").key, (PhaseKey{0, true, 1}));
  EXPECT_EQ(apart.at("a.grad").stage, 1);
  bool has_weight_phase = false;
  for (const auto& [name, phase] : apart) {
    has_weight_phase = has_weight_phase || phase.key == PhaseKey{0, true, 2};
    EXPECT_NE(together.at(name).key, (PhaseKey{0, true, 2})) << name;
  }
  EXPECT_TRUE(has_weight_phase);
}

TEST_F(PhasesTest, ClippingCrossesStagesByHops) {
  graph::TrainingOptions options;
  absl::StatusOr<graph::Graph> training =
      graph::BuildTrainingGraph(ops_, MustParse(kTwoStages), options);
  ASSERT_TRUE(training.ok()) << training.status();
  for (graph::NodeId id = 0; id < training->num_nodes(); ++id) {
    graph::Node& node = training->mutable_node(id);
    if (node.stage < 0) node.stage = 0;
    if (node.op->name() != "adamw" && node.op->name() != "sum_squares") continue;
    for (graph::ValueId operand : node.operands) {
      const std::string& name = training->value(operand).name;
      if (name == "w1" || name == "w1.grad") node.stage = 1;
    }
  }
  const graph::Graph graph = Lower(*std::move(training));
  const std::map<std::string, NodePhase> phases = Phases(graph);
  // Stage 1's squares are sent to stage 0, and the clip back to stage 1.
  EXPECT_EQ(phases.at("gradient_norm").key, (PhaseKey{1, false, 1}));
  EXPECT_EQ(phases.at("gradient_norm").stage, 0);
  EXPECT_EQ(phases.at("w1.new").key, (PhaseKey{1, false, 2}));
  EXPECT_EQ(phases.at("w1.new").stage, 1);
  EXPECT_EQ(phases.at("w0.new").key, (PhaseKey{1, false, 1}));
}

TEST_F(PhasesTest, ForwardValuesMustNotFlowBack) {
  const graph::Graph graph = MustParse(R"(mesh m = [mb=2 temporal]
graph g {
  %x = input : f32[8] @[mb] stage 0
  %y = tanh(%x) : f32[8] @[mb] stage 1
  %z = exp(%y) : f32[8] @[mb] stage 0
  return %z
})");
  const absl::StatusOr<std::vector<NodePhase>> phases = AssignPhases(graph, {});
  ASSERT_FALSE(phases.ok());
  EXPECT_THAT(std::string(phases.status().message()),
              HasSubstr("%z on stage 0 reads %y of stage 1"));
}

// Four stages on two groups of devices: h1 and h3 are chunks of the second.
TEST_F(PhasesTest, AGroupRunsSeveralStagesAsItsChunks) {
  const std::string text = R"(mesh m = [mb=2 temporal]
graph g {
  %x = input : f32[8] @[mb] stage 0
  %h0 = tanh(%x) : f32[8] @[mb] stage 0
  %h1 = tanh(%h0) : f32[8] @[mb] stage 1
  %h2 = tanh(%h1) : f32[8] @[mb] stage 2
  %h3 = tanh(%h2) : f32[8] @[mb] stage 3
  return %h3
})";
  const graph::Graph graph = MustParse(text);
  const PhaseOptions loop = {.placement = StagePlacement{2, 2, Placement::kLoop}};
  const PhaseOptions vee = {.placement = StagePlacement{2, 2, Placement::kVee}};
  for (const PhaseOptions& options : {loop, vee}) {
    const absl::StatusOr<std::vector<NodePhase>> phases = AssignPhases(graph, options);
    ASSERT_TRUE(phases.ok()) << phases.status();
    for (int i = 0; i < 4; ++i) {
      const graph::ValueId value = graph.FindValue("h" + std::to_string(i));
      const NodePhase& phase = (*phases)[graph.value(value).producer];
      const bool turns = options.placement->placement == Placement::kVee && i >= 2;
      EXPECT_EQ(phase.stage, turns ? 3 - i : i % 2);
      EXPECT_EQ(phase.key, (PhaseKey{0, true, 0, i / 2}));
    }
  }
  // Chunks follow each other as stages do.
  graph::Graph wrong = graph;
  wrong.mutable_node(graph.value(graph.FindValue("h1")).producer).stage = 3;
  EXPECT_THAT(std::string(AssignPhases(wrong, loop).status().message()),
              HasSubstr("%h2 on stage 2 reads %h1 of stage 3"));
}

TEST_F(PhasesTest, AValueIsPerMicrobatchWhenSplitOrPartialInTime) {
  const graph::Graph graph = MustParse(R"(mesh m = [mb=2 temporal, dp=2]
graph g {
  %a = input : f32[8] @[mb]
  %b = input : f32[8] @[dp] partial(sum, mb)
  %c = input : f32[8] @[dp]
  %d = input : f32[8]
  return %a
})");
  EXPECT_TRUE(IsPerMicrobatch(graph, 0));
  EXPECT_TRUE(IsPerMicrobatch(graph, 1));
  EXPECT_FALSE(IsPerMicrobatch(graph, 2));
  EXPECT_FALSE(IsPerMicrobatch(graph, 3));
}

}  // namespace
}  // namespace penstock::planner
