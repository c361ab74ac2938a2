#include "planner/strategy/strategy.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/training.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

std::string MessageOf(const absl::Status& status) { return std::string(ToStd(status.message())); }

class StrategyTest : public ::testing::Test {
 protected:
  StrategyTest()
      : ops_(graph::BuiltinOps()),
        models_(graph::BuiltinModels()),
        gpt_(*models_.FindModel("gpt")) {
    graph::ModelConfig config;
    config.layers = 2;
    config.width = 32;
    config.heads = 4;
    config.context = 8;
    absl::StatusOr<graph::Graph> graph =
        graph::BuildModelGraph(ops_, gpt_, config, graph::ModelUse::kTrain, 16);
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (graph.ok()) graph_ = *std::move(graph);
  }

  std::string ShardingOf(std::string_view name) const {
    const graph::ValueId id = graph_.FindValue(name);
    if (id == graph::kNoValue) return "no such value";
    const graph::Value& value = graph_.value(id);
    if (!value.sharding.has_value()) return "open";
    return graph::ToString(graph_.meshes()[0], *value.sharding);
  }

  graph::OpRegistry ops_;
  graph::ModelRegistry models_;
  const graph::Model& gpt_;
  graph::Graph graph_;
};

TEST(ParseStrategyTest, ReadsAxesInAnyOrder) {
  const absl::StatusOr<std::optional<Strategy>> strategy = ParseStrategy("tp=2, dp=4");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ(**strategy, (Strategy{4, 2, 1}));
  EXPECT_EQ(ToString(**strategy), "dp=4,tp=2,pp=1");
  EXPECT_EQ((*strategy)->num_devices(), 8);
}

TEST(ParseStrategyTest, RecomputeHasThreeLevels) {
  const absl::StatusOr<std::optional<Strategy>> strategy = ParseStrategy("recompute=full,dp=2");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ(ToString(**strategy), "dp=2,tp=1,pp=1,recompute=full");
  EXPECT_EQ((*ParseStrategy("recompute=none"))->recompute, Recompute::kNone);
  EXPECT_THAT(MessageOf(ParseStrategy("recompute=some").status()),
              HasSubstr("recompute is 'some', not none, selective or full"));
}

TEST(ParseStrategyTest, OffloadSaysWhat) {
  const absl::StatusOr<std::optional<Strategy>> strategy =
      ParseStrategy("offload=states,recompute=full");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ(ToString(**strategy), "dp=1,tp=1,pp=1,recompute=full,offload=states");
  EXPECT_EQ((*ParseStrategy("offload=all"))->offload, Offload::kAll);
  EXPECT_EQ((*ParseStrategy("offload=none"))->offload, Offload::kNone);
  EXPECT_THAT(MessageOf(ParseStrategy("offload=disk").status()),
              HasSubstr("offload is 'disk', not none, states, activations or all"));
}

TEST(ParseStrategyTest, AnOptimizerOnTheHostHasADeviceOfItsOwn) {
  const absl::StatusOr<std::optional<Strategy>> strategy =
      ParseStrategy("optimizer=host,dp=2,tp=2,pp=2,sp=true,offload=activations");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_TRUE((*strategy)->optimizer_on_host);
  EXPECT_EQ((*strategy)->num_devices(), 9);
  EXPECT_EQ((*strategy)->num_stages(), 2);
  EXPECT_EQ(ToString(**strategy), "dp=2,tp=2,pp=2,sp=true,offload=activations,optimizer=host");
  EXPECT_EQ(**ParseStrategy(ToString(**strategy)), **strategy);
  EXPECT_EQ(**ParseStrategy("optimizer=device"), Strategy());
}

TEST(ParseStrategyTest, SubBatchesAreANumber) {
  const absl::StatusOr<std::optional<Strategy>> strategy = ParseStrategy("subbatches=2,tp=2");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ((*strategy)->sub_batches, 2);
  EXPECT_EQ((*strategy)->num_devices(), 2);
  EXPECT_EQ(ToString(**strategy), "dp=1,tp=2,pp=1,subbatches=2");
  EXPECT_EQ(ToString(**ParseStrategy("subbatches=1")), "dp=1,tp=1,pp=1");
  EXPECT_THAT(MessageOf(ParseStrategy("subbatches=0").status()),
              HasSubstr("the size of 'subbatches' is '0'"));
  EXPECT_THAT(MessageOf(ParseStrategy("subbatches=1000").status()),
              HasSubstr("subbatches=1000 is more than 64"));
}

TEST(ParseStrategyTest, VirtualStagesNeedNoDevices) {
  const absl::StatusOr<std::optional<Strategy>> strategy = ParseStrategy("pp=2,vpp=3");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ(**strategy, (Strategy{1, 1, 2, 3}));
  EXPECT_EQ(ToString(**strategy), "dp=1,tp=1,pp=2,vpp=3");
  EXPECT_EQ((*strategy)->num_devices(), 2);
  EXPECT_EQ((*strategy)->num_stages(), 6);
}

TEST(ParseStrategyTest, OptionsFollowTheAxes) {
  const absl::StatusOr<std::optional<Strategy>> strategy =
      ParseStrategy("zero=2, sp=true, tp=2, dp=4");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ(**strategy, (Strategy{.dp = 4, .tp = 2, .zero = 2, .sp = true}));
  EXPECT_EQ(ToString(**strategy), "dp=4,tp=2,pp=1,zero=2,sp=true");
  EXPECT_EQ(**ParseStrategy(ToString(**strategy)), **strategy);
  EXPECT_EQ(**ParseStrategy("zero=0,sp=false"), Strategy());
}

TEST(ParseStrategyTest, ExpertsLieInsideDataParallelism) {
  const absl::StatusOr<std::optional<Strategy>> strategy = ParseStrategy("ep=2,dp=4,tp=2");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ((*strategy)->ep, 2);
  EXPECT_EQ(ToString(**strategy), "dp=4,tp=2,pp=1,ep=2");
  EXPECT_EQ((*strategy)->num_devices(), 8);
}

TEST(ParseStrategyTest, ContextParallelismHasDevicesOfItsOwn) {
  const absl::StatusOr<std::optional<Strategy>> strategy =
      ParseStrategy("cp=4,dp=2,tp=2,zero=1,ulysses=true");
  ASSERT_TRUE(strategy.ok()) << strategy.status();
  EXPECT_EQ(**strategy, (Strategy{.dp = 2, .tp = 2, .zero = 1, .cp = 4, .ulysses = true}));
  EXPECT_EQ(ToString(**strategy), "dp=2,tp=2,pp=1,cp=4,ulysses=true,zero=1");
  EXPECT_EQ((*strategy)->num_devices(), 16);
  EXPECT_EQ((*strategy)->num_replicas(), 8);
  EXPECT_EQ(**ParseStrategy("cp=2,zero=3"), (Strategy{.zero = 3, .cp = 2}));
}

TEST(ParseStrategyTest, AutoIsNoStrategy) {
  const absl::StatusOr<std::optional<Strategy>> strategy = ParseStrategy("auto");
  ASSERT_TRUE(strategy.ok());
  EXPECT_FALSE(strategy->has_value());
}

TEST(ParseStrategyTest, ErrorsNameTheAxis) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "an axis is missing"},
      {"dp", "'dp' is not of the form AXIS=SIZE"},
      {"dp=0", "'dp' is '0'"},
      {"dp=-2", "'dp' is '-2'"},
      {"dp=two", "'dp' is 'two'"},
      {"dp=2,dp=2", "given twice"},
      {"zp=2", "unknown axis 'zp'"},
      {"dp=2,", "an axis is missing"},
      {"dp=99999999999999999999", "dp"},
      {"dp=65536,tp=65536,pp=65536", "more than 65536 devices"},
      {"vpp=2", "without pipeline"},
      {"pp=2,vpp=257", "vpp=257 is more than 256"},
      {"zero=1", "set dp to 2 or more"},
      {"tp=2,zero=1", "set dp to 2 or more"},
      {"dp=2,sp=true", "set tp to 2"},
      {"dp=2,splits=cost", "set tp to 2"},
      {"tp=2,sp=true,splits=cost", "leave out sp"},
      {"tp=2,splits=columns", "splits is 'columns', not cost"},
      {"dp=2,zero=4", "zero is '4', not a number from 1"},
      {"dp=2,zero=-1", "zero is '-1'"},
      {"dp=2,zero=", "zero is ''"},
      {"dp=2,zero=1,zero=1", "twice"},
      {"tp=2,sp=1", "sp is '1', not true or false"},
      {"dp=2,cp=65536", "more than 65536 devices"},
      {"dp=65536,tp=65536,pp=65536,cp=65536", "more than 65536 devices"},
      {"cp=0", "'cp' is '0'"},
      {"dp=2,ulysses=true", "set cp to 2"},
      {"cp=2,ulysses=2", "ulysses is '2', not true or false"},
      {"ep=2", "ep=2 does not divide dp=1"},
      {"dp=4,ep=3", "ep=3 does not divide dp=4"},
      {"optimizer=gpu", "optimizer is 'gpu', not host (a CPU device of its own) or device"},
      {"dp=2,zero=1,optimizer=host",
       "optimizer=host with zero=1: the optimiser's states lie whole on one device; leave out "
       "either"},
      {"dp=2,zero=3,optimizer=host", "optimizer=host with zero=3"},
      {"pp=2,vpp=2,optimizer=host", "optimizer=host with vpp=2"},
      {"offload=states,optimizer=host", "optimizer=host with offload=states: the optimiser's"},
      {"tp=2,splits=cost,optimizer=host", "optimizer=host with splits=cost"},
      {"offload=all,optimizer=host", "optimizer=host with offload=all"},
      {"dp=65536,optimizer=host", "more than 65536 devices"},
  };
  for (const auto& [text, message] : bad) {
    const auto strategy = ParseStrategy(text);
    ASSERT_FALSE(strategy.ok()) << text;
    EXPECT_THAT(MessageOf(strategy.status()), HasSubstr(message));
  }
}

TEST_F(StrategyTest, SplitsTheBatchAndTheHintedWeights) {
  const absl::Status status = ApplyStrategy({2, 2, 1}, 4, gpt_.tensor_splits, graph_);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(graph_.meshes().size(), 1);
  const graph::Mesh& mesh = graph_.meshes()[0];
  EXPECT_EQ(mesh.num_devices(), 4);
  EXPECT_EQ(mesh.num_microbatches(), 4);
  EXPECT_EQ(ShardingOf("tokens"), "@[mb.dp, _]");
  EXPECT_EQ(ShardingOf("labels"), "@[mb.dp, _]");
  EXPECT_EQ(ShardingOf("wte"), "@[tp, _]");
  EXPECT_EQ(ShardingOf("h1.attn.qkv_w"), "@[_, _, tp, _]");
  EXPECT_EQ(ShardingOf("h0.attn.proj_w"), "@[tp, _, _]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1"), "@[_, tp]");
  EXPECT_EQ(ShardingOf("h0.mlp.w2"), "@[tp, _]");
  EXPECT_EQ(ShardingOf("h0.mlp.b1"), "open");
  EXPECT_EQ(ShardingOf("h0.ln1.scale"), "open");
  EXPECT_EQ(graph_.returns()[0].sharding, graph::Sharding::Replicated(0));
}

TEST_F(StrategyTest, SequenceParallelSplitsTheResidualStream) {
  ASSERT_TRUE(ApplyStrategy({.tp = 2}, 1, gpt_.tensor_splits, graph_).ok());
  EXPECT_EQ(ShardingOf("h0.attn.residual"), "open");
  graph_.mutable_meshes().clear();
  ASSERT_TRUE(ApplyStrategy({.tp = 2, .sp = true}, 1, gpt_.tensor_splits, graph_).ok());
  EXPECT_EQ(ShardingOf("h0.attn.residual"), "@[?, tp? p1, ?]");
  EXPECT_EQ(ShardingOf("h1.mlp.residual"), "@[?, tp? p1, ?]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1"), "@[_, tp]");
}

TEST_F(StrategyTest, SequenceParallelNeedsAModelWithSequences) {
  std::vector<graph::SplitHint> weights;
  for (const graph::SplitHint& hint : gpt_.tensor_splits) {
    if (!hint.is_sequence) weights.push_back(hint);
  }
  EXPECT_THAT(MessageOf(CheckStrategy({.tp = 2, .sp = true}, 1, weights, graph_)),
              HasSubstr("which of its values run over a sequence"));
}

TEST_F(StrategyTest, ContextParallelSplitsTheSequencesOfTheInputs) {
  ASSERT_TRUE(ApplyStrategy({.dp = 2, .cp = 4}, 2, gpt_.tensor_splits, graph_).ok());
  EXPECT_EQ(graph_.meshes()[0].num_devices(), 8);
  EXPECT_EQ(ShardingOf("tokens"), "@[mb.dp, cp]");
  EXPECT_EQ(ShardingOf("labels"), "@[mb.dp, cp]");
  EXPECT_EQ(ShardingOf("wte"), "open");
  EXPECT_EQ(ShardingOf("h0.attn.mixed"), "open");
}

TEST_F(StrategyTest, SequenceParallelDividesThePartsOfContextParallel) {
  ASSERT_TRUE(ApplyStrategy({.tp = 2, .sp = true, .cp = 2}, 1, gpt_.tensor_splits, graph_).ok());
  EXPECT_EQ(ShardingOf("tokens"), "@[_, cp]");
  EXPECT_EQ(ShardingOf("h0.attn.residual"), "@[?, cp.tp? p1, ?]");
}

TEST_F(StrategyTest, ContextParallelNeedsSequencesAndUlyssesHeads) {
  const auto check = [this](const Strategy& strategy) {
    return MessageOf(CheckStrategy(strategy, 1, gpt_.tensor_splits, graph_));
  };
  EXPECT_EQ(check({.cp = 8}), "");
  EXPECT_THAT(check({.cp = 3}), HasSubstr("cp = 3 does not divide the 8 positions of tokens"));
  EXPECT_EQ(check({.cp = 4, .ulysses = true}), "");
  EXPECT_THAT(check({.cp = 8, .ulysses = true}),
              HasSubstr("cp = 8 does not divide the 4 heads of h0.attn.mixed"));
  EXPECT_THAT(check({.tp = 2, .cp = 4, .ulysses = true}),
              HasSubstr("cp times tp = 8 does not divide the 4 heads"));
  EXPECT_THAT(MessageOf(CheckStrategy({.cp = 2}, 1, {}, graph_)),
              HasSubstr("cp = 2: the model says of no input that it runs over a sequence"));
}

// Graphs with an optimizer: ZeRO as shardings.
class ZeroTest : public StrategyTest {
 protected:
  ZeroTest() {
    absl::StatusOr<graph::Graph> graph = graph::BuildTrainingGraph(ops_, graph_, {});
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (graph.ok()) graph_ = *std::move(graph);
  }

  void Apply(const Strategy& strategy, int64_t microbatches) {
    const absl::Status status = ApplyStrategy(strategy, microbatches, gpt_.tensor_splits, graph_);
    ASSERT_TRUE(status.ok()) << status;
  }
};

TEST_F(ZeroTest, Level1SplitsTheOptimizersState) {
  Apply({.dp = 2, .zero = 1}, 4);
  EXPECT_EQ(ShardingOf("h0.mlp.w1"), "@[?, ?] replicated(dp)");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.m"), "@[dp p2, _ p2]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.v"), "@[dp p2, _ p2]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.grad"), "@[dp p2, _ p2]");
  // A part would be too small.
  EXPECT_EQ(ShardingOf("h0.mlp.b1.m"), "open");
}

TEST_F(ZeroTest, Level2SumsGradientsOverDevicesFirst) {
  Apply({.dp = 2, .zero = 2}, 4);
  EXPECT_EQ(ShardingOf("h0.mlp.w1"), "@[?, ?] replicated(dp)");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.m"), "@[dp p2, _ p2]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.grad"), "@[dp p2, _ p2] partial(sum, mb)");
}

TEST_F(ZeroTest, Level3SplitsParameters) {
  Apply({.dp = 2, .zero = 3}, 1);
  EXPECT_EQ(ShardingOf("h0.mlp.w1"), "@[dp p2, _]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.m"), "@[dp p2, _ p2]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.grad"), "@[dp p2, _ p2]");
  EXPECT_EQ(ShardingOf("h0.mlp.b1"), "@[?] replicated(dp)");
}

TEST_F(ZeroTest, TensorParallelAxesStay) {
  Apply({.dp = 2, .tp = 2, .zero = 1}, 1);
  EXPECT_EQ(ShardingOf("h0.mlp.w2"), "@[tp, _]");
  // Behind tp, so that the part of a device is contiguous.
  EXPECT_EQ(ShardingOf("h0.mlp.w2.m"), "@[tp.dp p2, _ p2]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1.m"), "@[dp p2, tp p2]");
}

TEST_F(ZeroTest, Level3LeavesTheDimensionsOfOtherAxesAlone) {
  Apply({.dp = 2, .tp = 2, .zero = 3}, 1);
  EXPECT_EQ(ShardingOf("h0.mlp.w2"), "@[tp, dp p2]");
  EXPECT_EQ(ShardingOf("h0.mlp.w1"), "@[dp p2, tp]");
}

TEST_F(ZeroTest, UlyssesSplitsTheStatisticsOfAttention) {
  const Strategy strategy = {.tp = 2, .cp = 2, .ulysses = true};
  ASSERT_TRUE(ApplyStrategy(strategy, 1, gpt_.tensor_splits, graph_).ok());
  const graph::Node& attention =
      graph_.node(graph_.value(graph_.FindValue("h0.attn.mixed")).producer);
  ASSERT_EQ(attention.results.size(), 2u);
  EXPECT_EQ(ShardingOf("h0.attn.mixed"), "open");
  EXPECT_EQ(graph::ToString(graph_.meshes()[0], *graph_.value(attention.results[1]).sharding),
            "@[?, tp.cp p1, _ p1]");
}

TEST_F(ZeroTest, ContextIsAReplicaToo) {
  ASSERT_TRUE(ApplyStrategy({.dp = 2, .zero = 1, .cp = 2}, 1, gpt_.tensor_splits, graph_).ok());
  EXPECT_EQ(ShardingOf("h0.mlp.w1.m"), "@[dp.cp p2, _ p2]");
  // A part of the positions belongs to a part of the sequence.
  EXPECT_EQ(ShardingOf("wpe"), "@[?, ?] replicated(dp)");
}

TEST_F(StrategyTest, AxesOfOneAreLeftOut) {
  ASSERT_TRUE(ApplyStrategy({1, 1, 1}, 1, gpt_.tensor_splits, graph_).ok());
  EXPECT_EQ(graph_.meshes()[0].FindAxis("mb"), -1);
  EXPECT_EQ(ShardingOf("tokens"), "@[_, _]");
  EXPECT_EQ(ShardingOf("wte"), "open");
}

TEST_F(StrategyTest, RefusesWhatDoesNotDivide) {
  const auto check = [this](Strategy strategy, int64_t microbatches) {
    return MessageOf(CheckStrategy(strategy, microbatches, gpt_.tensor_splits, graph_));
  };
  EXPECT_EQ(check({2, 2, 2}, 2), "");
  EXPECT_THAT(check({1, 3, 1}, 1), HasSubstr("tp = 3 does not divide the 4 heads of h0.attn"));
  EXPECT_THAT(check({3, 1, 1}, 1),
              HasSubstr("dp = 3 does not divide batch = 16; a batch that is a multiple of 3 fits"));
  EXPECT_THAT(check({2, 1, 1}, 16),
              HasSubstr("dp = 2 times microbatches = 16 does not divide batch = 16"));
  EXPECT_THAT(check({1, 1, 1}, 3), HasSubstr("microbatches = 3 does not divide batch = 16"));
  Strategy in_parts = {1, 2, 1};
  in_parts.sub_batches = 2;
  EXPECT_EQ(check(in_parts, 8), "");
  EXPECT_THAT(check(in_parts, 16),
              HasSubstr("microbatches = 16 times subbatches = 2 does not divide batch = 16"));
  EXPECT_THAT(check({1, 1, 1000}, 1), HasSubstr("pp = 1000 is more than the"));
  EXPECT_THAT(check({1, 1, 10, 100}, 1), HasSubstr("pp times vpp = 1000 is more than the"));
  EXPECT_THAT(check({1, 1, 1}, 0), HasSubstr("microbatches = 0"));
  EXPECT_THAT(check({4, 1, 1}, int64_t{1} << 62),
              HasSubstr("microbatches = 4611686018427387904: a step has at most 16384"));
  EXPECT_THAT(MessageOf(CheckStrategy({1, 2, 1}, 1, {}, graph_)), HasSubstr("how to split it"));
}

TEST_F(StrategyTest, SplitsTheExpertsOverAPartOfTheBatchsAxis) {
  const graph::Model& moe = *models_.FindModel("moe");
  graph::ModelConfig config;
  config.layers = 2;
  config.width = 32;
  config.context = 8;
  config.experts = 6;
  absl::StatusOr<graph::Graph> graph =
      graph::BuildModelGraph(ops_, moe, config, graph::ModelUse::kTrain, 16);
  ASSERT_TRUE(graph.ok()) << graph.status();
  graph_ = *std::move(graph);
  const auto check = [&](const Strategy& strategy) {
    return MessageOf(CheckStrategy(strategy, 1, moe.tensor_splits, graph_));
  };
  EXPECT_THAT(check({.dp = 4, .ep = 4}),
              HasSubstr("ep = 4 does not divide the 6 experts of h0.moe.w1"));
  EXPECT_THAT(MessageOf(CheckStrategy({.dp = 2, .ep = 2}, 1, gpt_.tensor_splits, graph_)),
              HasSubstr("ep = 2: the model has no experts"));
  const absl::Status status =
      ApplyStrategy({.dp = 4, .tp = 2, .ep = 2}, 4, moe.tensor_splits, graph_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(graph_.meshes()[0].num_devices(), 8);
  EXPECT_EQ(ShardingOf("tokens"), "@[mb.dp.ep p1, _]");
  EXPECT_EQ(ShardingOf("h0.moe.w1"), "@[ep, _, tp]");
  EXPECT_EQ(ShardingOf("h0.moe.w2"), "@[ep, tp, _]");
  EXPECT_EQ(ShardingOf("h0.moe.router"), "open");
  EXPECT_EQ(ShardingOf("h0.attn.qkv_w"), "@[_, _, tp, _]");
}

TEST_F(StrategyTest, AMeshIsNotReplaced) {
  ASSERT_TRUE(ApplyStrategy({1, 1, 1}, 1, {}, graph_).ok());
  EXPECT_THAT(MessageOf(ApplyStrategy({1, 1, 1}, 1, {}, graph_)), HasSubstr("already"));
}

TEST_F(StrategyTest, MicrobatchesFillAPipelineAndDivideTheBatch) {
  EXPECT_EQ(ChooseMicrobatches({4, 1, 1}, graph_), 1);
  EXPECT_EQ(ChooseMicrobatches({1, 1, 2}, graph_), 8);
  EXPECT_EQ(ChooseMicrobatches({8, 1, 2}, graph_), 2);
}

}  // namespace
}  // namespace penstock::planner
