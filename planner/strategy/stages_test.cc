#include "planner/strategy/stages.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/training.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

TEST(CutSequenceTest, CutsEvenlyWhereLittleCrosses) {
  EXPECT_THAT(CutSequence({1, 1, 1, 1, 1, 1}, {5, 1, 5, 1, 5, 0}, 3), ElementsAre(0, 2, 4));
}

TEST(CutSequenceTest, OnePartIsTheWhole) {
  EXPECT_THAT(CutSequence({1, 2}, {1, 0}, 1), ElementsAre(0));
}

TEST(CutSequenceTest, ADearElementStandsAlone) {
  EXPECT_THAT(CutSequence({1, 1, 9, 1, 1}, {1, 1, 1, 1, 0}, 3), ElementsAre(0, 2, 3));
}

TEST(CutSequenceTest, AsManyPartsAsElements) {
  EXPECT_THAT(CutSequence({0, 0, 7}, {3, 9, 0}, 3), ElementsAre(0, 1, 2));
}

TEST(CutSequenceTest, ADearerCrossingIsTakenWhereItBalancesMuchBetter) {
  // The one cheap point leaves a part of 7; twice the crossing gives 5 and 5.
  EXPECT_THAT(CutSequence({4, 1, 2, 3}, {2, 2, 1, 0}, 2), ElementsAre(0, 2));
  EXPECT_THAT(CutSequence({4, 1, 2, 3}, {90, 90, 1, 0}, 2), ElementsAre(0, 3));
}

class StagesTest : public ::testing::Test {
 protected:
  StagesTest() : ops_(graph::BuiltinOps()), models_(graph::BuiltinModels()) {}

  graph::Graph TrainingGraph(int64_t layers) {
    graph::ModelConfig config;
    config.layers = layers;
    config.width = 64;
    config.heads = 4;
    config.context = 16;
    absl::StatusOr<graph::Graph> forward =
        graph::BuildModelGraph(ops_, *models_.FindModel("gpt"), config, graph::ModelUse::kTrain, 8);
    EXPECT_TRUE(forward.ok()) << forward.status();
    graph::TrainingOptions options;
    options.warmup_steps = 5;
    absl::StatusOr<graph::Graph> training =
        graph::BuildTrainingGraph(ops_, *std::move(forward), options);
    EXPECT_TRUE(training.ok()) << training.status();
    return *std::move(training);
  }

  static int StageOf(const graph::Graph& graph, std::string_view name) {
    return graph.node(graph.value(graph.FindValue(name)).producer).stage;
  }

  graph::OpRegistry ops_;
  graph::ModelRegistry models_;
};

TEST_F(StagesTest, EveryNodeHasAStageAndForwardsFlowDownstream) {
  for (const int stages : {1, 2, 3, 4}) {
    graph::Graph graph = TrainingGraph(4);
    const absl::Status status = AssignStages(stages, graph);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<int> counts(stages, 0);
    for (const graph::Node& node : graph.nodes()) {
      ASSERT_GE(node.stage, 0);
      ASSERT_LT(node.stage, stages);
      ++counts[node.stage];
      for (const graph::ValueId operand : node.operands) {
        const graph::Node& producer = graph.node(graph.value(operand).producer);
        if (node.phase == graph::Phase::kForward) {
          EXPECT_LE(producer.stage, node.stage);
        }
        const bool is_gradient = (node.phase == graph::Phase::kBackward ||
                                  node.phase == graph::Phase::kWeightBackward) &&
                                 (producer.phase == graph::Phase::kBackward ||
                                  producer.phase == graph::Phase::kWeightBackward);
        if (is_gradient) {
          EXPECT_GE(producer.stage, node.stage);
        }
      }
    }
    for (const int count : counts) EXPECT_GT(count, 0);
  }
}

// And its gradient, the sum of those of its readers, comes back.
TEST_F(StagesTest, OneActivationCrossesEachCut) {
  graph::Graph graph = TrainingGraph(4);
  ASSERT_TRUE(AssignStages(4, graph).ok());
  for (const graph::Phase phase : {graph::Phase::kForward, graph::Phase::kBackward}) {
    std::map<int, std::vector<std::string>> crossing;  // by the stage that sends
    for (graph::ValueId id = 0; id < graph.num_values(); ++id) {
      const graph::Value& value = graph.value(id);
      const graph::Node& producer = graph.node(value.producer);
      if (producer.phase != phase || producer.operands.empty()) continue;
      for (const graph::Node& user : graph.nodes()) {
        if (user.stage != producer.stage &&
            std::count(user.operands.begin(), user.operands.end(), id) > 0) {
          crossing[producer.stage].push_back(value.name);
          break;
        }
      }
    }
    EXPECT_EQ(crossing.size(), 3);
    for (const auto& [stage, names] : crossing) {
      EXPECT_EQ(names.size(), 1) << StrJoin(names, ", ");
    }
  }
}

TEST_F(StagesTest, StateLivesWithItsParameter) {
  graph::Graph graph = TrainingGraph(4);
  ASSERT_TRUE(AssignStages(2, graph).ok());
  EXPECT_EQ(StageOf(graph, "wte"), 0);
  EXPECT_EQ(StageOf(graph, "tokens"), 0);
  EXPECT_EQ(StageOf(graph, "labels"), 1);
  EXPECT_EQ(StageOf(graph, "h0.mlp.w1"), 0);
  EXPECT_EQ(StageOf(graph, "h3.mlp.w1"), 1);
  EXPECT_EQ(StageOf(graph, "h3.mlp.w1.m"), 1);
  EXPECT_EQ(StageOf(graph, "h3.mlp.w1.new"), 1);
  EXPECT_EQ(StageOf(graph, "wte.m"), 0);
  EXPECT_EQ(StageOf(graph, "step"), 0);
  EXPECT_EQ(StageOf(graph, "clip"), 0);
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->name() != "assign") continue;
    const graph::Node& state = graph.node(graph.value(node.operands[0]).producer);
    EXPECT_EQ(node.stage, state.stage) << graph.value(node.operands[0]).name;
  }
}

TEST_F(StagesTest, TooManyStagesAreRefused) {
  graph::Graph graph = TrainingGraph(1);
  EXPECT_FALSE(AssignStages(100000, graph).ok());
  EXPECT_FALSE(AssignStages(0, graph).ok());
}

}  // namespace
}  // namespace penstock::planner
