#include "graph/training.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::graph {
namespace {

using ::testing::HasSubstr;

class TrainingTest : public ::testing::Test {
 protected:
  TrainingTest() : ops_(BuiltinOps()), models_(BuiltinModels()) {}

  Graph Forward(DType dtype = DType::kF32) {
    ModelConfig config;
    config.layers = 2;
    config.width = 32;
    config.heads = 4;
    config.context = 8;
    config.dtype = dtype;
    absl::StatusOr<Graph> graph =
        BuildModelGraph(ops_, *models_.FindModel("gpt"), config, ModelUse::kTrain, 4);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

  Graph Train(const TrainingOptions& options, DType dtype = DType::kF32) {
    absl::StatusOr<Graph> graph = BuildTrainingGraph(ops_, Forward(dtype), options);
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (graph.ok()) {
      EXPECT_TRUE(VerifyGraph(*graph).ok()) << VerifyGraph(*graph);
    }
    return *std::move(graph);
  }

  static std::map<std::string, int> CountOps(const Graph& graph) {
    std::map<std::string, int> counts;
    for (const Node& node : graph.nodes()) ++counts[std::string(node.op->name())];
    return counts;
  }

  static const Node& Producer(const Graph& graph, std::string_view name) {
    return graph.node(graph.value(graph.FindValue(name)).producer);
  }

  OpRegistry ops_;
  ModelRegistry models_;
};

TEST_F(TrainingTest, EveryParameterIsUpdatedOnce) {
  const Graph graph = Train({});
  const std::map<std::string, int> counts = CountOps(graph);
  const int parameters = counts.at("parameter");
  EXPECT_EQ(parameters, 2 + 2 * 12 + 2);
  EXPECT_EQ(counts.at("adamw"), parameters);
  EXPECT_EQ(counts.at("state"), 2 * parameters + 1);
  EXPECT_EQ(counts.at("assign"), 3 * parameters + 1);
  EXPECT_EQ(counts.at("sum_squares"), parameters);
}

TEST_F(TrainingTest, TheLossIsReturnedFirstThenTheNormWhereAskedFor) {
  TrainingOptions options;
  EXPECT_EQ(Train(options).returns().size(), 1);
  options.return_gradient_norm = true;
  for (const double clip : {0.0, 1.0}) {
    options.clip_norm = clip;
    const Graph graph = Train(options);
    ASSERT_EQ(graph.returns().size(), 2);
    EXPECT_EQ(graph.value(graph.returns()[0].value).name, "loss");
    EXPECT_EQ(graph.value(graph.returns()[1].value).name, "gradient_norm");
  }
}

TEST_F(TrainingTest, PhasesTellForwardBackwardAndUpdateApart) {
  const Graph graph = Train({});
  for (const Node& node : graph.nodes()) {
    const std::string_view op = node.op->name();
    if (op == "adamw" || op == "assign" || op == "sum_squares") {
      EXPECT_EQ(node.phase, Phase::kUpdate) << op;
    }
    if (op == "qkv_attention_grad" || op == "cross_entropy_grad") {
      EXPECT_NE(node.phase, Phase::kUpdate) << op;
      EXPECT_NE(node.phase, Phase::kForward) << op;
    }
  }
}

TEST_F(TrainingTest, OnlyWeightsDecay) {
  TrainingOptions options;
  options.weight_decay = 0.25;
  const Graph graph = Train(options);
  const auto decay_of = [&graph](std::string_view parameter) {
    return Producer(graph, StrCat(parameter, ".new")).attributes.GetDouble("weight_decay", -1);
  };
  EXPECT_EQ(decay_of("wte"), 0.25);
  EXPECT_EQ(decay_of("h0.attn.qkv_w"), 0.25);
  EXPECT_EQ(decay_of("h0.attn.qkv_b"), 0);
  EXPECT_EQ(decay_of("h0.mlp.b1"), 0);
  EXPECT_EQ(decay_of("ln_f.scale"), 0);
}

TEST_F(TrainingTest, WithoutClippingThereAreNoNorms) {
  TrainingOptions options;
  options.clip_norm = 0;
  EXPECT_EQ(CountOps(Train(options)).count("sum_squares"), 0);
}

TEST_F(TrainingTest, SgdKeepsABufferOnlyWithMomentum) {
  TrainingOptions options;
  options.optimizer = Optimizer::kSgd;
  options.momentum = 0;
  std::map<std::string, int> counts = CountOps(Train(options));
  EXPECT_EQ(counts["sgd"], counts["parameter"]);
  EXPECT_EQ(counts["state"], 1);
  options.momentum = 0.9;
  counts = CountOps(Train(options));
  EXPECT_EQ(counts["state"], 1 + counts["parameter"]);
}

TEST_F(TrainingTest, DoublesAreTrainedInDoubles) {
  const Graph graph = Train({}, DType::kF64);
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    EXPECT_NE(graph.value(id).type.dtype, DType::kF32) << graph.value(id).name;
  }
}

TEST_F(TrainingTest, APrintedTrainingGraphReadsBack) {
  TrainingOptions options;
  options.schedule = LearningRateSchedule::kCosine;
  options.warmup_steps = 3;
  options.total_steps = 10;
  const Graph graph = Train(options);
  const absl::StatusOr<Graph> read = ParseGraph(PrintGraph(graph), "t", ops_);
  ASSERT_TRUE(read.ok()) << read.status();
  std::string difference;
  EXPECT_TRUE(GraphsEqual(graph, *read, &difference)) << difference;
}

TEST_F(TrainingTest, RefusesWhatIsNoLossAndBadOptions) {
  Graph predict;
  {
    ModelConfig config;
    config.width = 32;
    predict = *BuildModelGraph(ops_, *models_.FindModel("gpt"), config, ModelUse::kPredict, 1);
  }
  const absl::StatusOr<Graph> training = BuildTrainingGraph(ops_, predict, {});
  ASSERT_FALSE(training.ok());
  EXPECT_THAT(std::string(ToStd(training.status().message())), HasSubstr("scalar"));
  TrainingOptions options;
  options.beta1 = 1;
  EXPECT_FALSE(BuildTrainingGraph(ops_, Forward(), options).ok());
  options = {};
  options.schedule = LearningRateSchedule::kCosine;
  EXPECT_FALSE(BuildTrainingGraph(ops_, Forward(), options).ok());
}

TEST(LearningRateTest, WarmsUpThenFallsToTheMinimum) {
  TrainingOptions options;
  options.learning_rate = 1.0;
  options.warmup_steps = 4;
  EXPECT_DOUBLE_EQ(LearningRate(options, 1), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(options, 4), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 1000), 1.0);
  options.schedule = LearningRateSchedule::kCosine;
  options.total_steps = 104;
  options.min_learning_rate = 0.2;
  EXPECT_DOUBLE_EQ(LearningRate(options, 2), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 4), 1.0);
  EXPECT_NEAR(LearningRate(options, 54), 0.6, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(options, 104), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(options, 1000), 0.2);
}

}  // namespace
}  // namespace penstock::graph
