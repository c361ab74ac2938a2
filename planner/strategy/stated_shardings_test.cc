#include "planner/strategy/stated_shardings.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/op.h"
#include "graph/training.h"
#include "planner/strategy/repeated_layers.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

class StatedShardingsTest : public ::testing::Test {
 protected:
  StatedShardingsTest() : ops_(graph::BuiltinOps()), models_(graph::BuiltinModels()) {}

  graph::Graph Forward(int64_t layers) {
    graph::ModelConfig config;
    config.layers = layers;
    return *graph::BuildModelGraph(ops_, *models_.FindModel("gpt"), config, graph::ModelUse::kTrain,
                                   8);
  }

  // What is stated, then what the model says.
  std::vector<graph::SplitHint> Hints(const std::vector<std::string>& stated) {
    std::vector<graph::SplitHint> hints;
    for (const std::string& text : stated) hints.push_back(*ParseStatedSharding(text));
    const std::vector<graph::SplitHint>& splits = models_.FindModel("gpt")->tensor_splits;
    hints.insert(hints.end(), splits.begin(), splits.end());
    return hints;
  }

  // The training step of two layers under a strategy.
  absl::Status Apply(std::string_view strategy, const std::vector<std::string>& stated) {
    graph_ = *graph::BuildTrainingGraph(ops_, Forward(2), {});
    return ApplyStrategy(**ParseStrategy(strategy), 1, Hints(stated), graph_);
  }

  std::string ShardingOf(std::string_view name) {
    const graph::ValueId id = graph_.FindValue(name);
    if (id == graph::kNoValue) return StrCat("no value ", name);
    const graph::Value& value = graph_.value(id);
    return value.sharding.has_value() ? graph::ToString(graph_.meshes()[0], *value.sharding)
                                      : "none";
  }

  const graph::OpRegistry ops_;
  const graph::ModelRegistry models_;
  graph::Graph graph_{""};
};

TEST_F(StatedShardingsTest, AHintIsAPatternAndASharding) {
  const graph::SplitHint hint = *ParseStatedSharding("  %h*.mlp.w1   @[_, tp.dp] replicated(cp) ");
  EXPECT_EQ(hint.pattern, "h*.mlp.w1");
  EXPECT_EQ(hint.sharding, "@[_, tp.dp] replicated(cp)");
  EXPECT_TRUE(hint.IsFor("tp"));
  EXPECT_TRUE(hint.IsFor("dp"));
  EXPECT_TRUE(hint.IsFor("cp"));
  EXPECT_FALSE(hint.IsFor("p"));
  EXPECT_FALSE(hint.IsFor("ep"));
  for (const char* text : {"", "wte", "@[tp]", " % @[tp]", "wte [tp]", "wte @tp", "wte @[tp"}) {
    EXPECT_THAT(std::string(ToStd(ParseStatedSharding(text).status().message())),
                HasSubstr("expected a pattern of values and a sharding"))
        << text;
  }
}

TEST_F(StatedShardingsTest, TheLastHintForAValueHolds) {
  ASSERT_TRUE(Apply("dp=2,tp=2", {"h*.mlp.w1 @[tp, _]", "h{1-1}.mlp.w1 @[_, _]"}).ok());
  EXPECT_EQ(ShardingOf("h0.mlp.w1"), "@[tp, _]");
  EXPECT_EQ(ShardingOf("h1.mlp.w1"), "@[_, _]");
  // Of others the model says it.
  EXPECT_EQ(ShardingOf("h1.mlp.w2"), "@[tp, _]");
}

TEST_F(StatedShardingsTest, StatesOfTheOptimizerAndGradientsHaveNamesToo) {
  ASSERT_TRUE(Apply("dp=4,zero=1", {"wte.m @[_, dp]", "wte.grad @[_, dp]"}).ok());
  EXPECT_EQ(ShardingOf("wte.m"), "@[_, dp]");
  EXPECT_EQ(ShardingOf("wte.grad"), "@[_, dp]");
  // The rest is what zero=1 splits.
  EXPECT_EQ(ShardingOf("wte.v").substr(0, 4), "@[dp");
}

TEST_F(StatedShardingsTest, AxesThatTheStrategyLacksAreOneDevice) {
  ASSERT_TRUE(Apply("dp=2", {"wte @[ep.dp, cp.tp]", "wpe @[mb, tp]"}).ok());
  EXPECT_EQ(ShardingOf("wte"), "@[dp, tp]");
  EXPECT_EQ(ShardingOf("wpe"), "@[_, tp]");
}

TEST_F(StatedShardingsTest, ErrorsNameTheHintAndTheValue) {
  const std::string unknown = std::string(ToStd(Apply("dp=2", {"wte @[xp, _]"}).message()));
  EXPECT_THAT(unknown, HasSubstr("has no axis 'xp'"));
  EXPECT_THAT(unknown, HasSubstr("for %wte : f32[256, 128]"));
  EXPECT_THAT(unknown, HasSubstr("hint \"wte @[xp, _]\""));
  EXPECT_FALSE(Apply("dp=2", {"wte @[dp, dp]"}).ok());
  EXPECT_FALSE(Apply("dp=2", {"wte @[dp, _] and more"}).ok());

  graph_ = *graph::BuildTrainingGraph(ops_, Forward(2), {});
  EXPECT_TRUE(CheckStatedShardings(Hints({"h*.mlp.w1.v @[dp, _]"}), graph_).ok());
  const std::string nothing =
      std::string(ToStd(CheckStatedShardings(Hints({"h7.mlp.w1 @[dp, _]"}), graph_).message()));
  EXPECT_THAT(nothing, HasSubstr("\"h7.mlp.w1 @[dp, _]\" matches no value"));
  EXPECT_THAT(nothing, HasSubstr("did you mean 'h"));
  EXPECT_THAT(std::string(ToStd(CheckStatedShardings(Hints({"wte @[dp]"}), graph_).message())),
              HasSubstr("that has 1 dimension"));
}

// A pattern may match vectors and matrices; the sharding tells which it is for.
TEST_F(StatedShardingsTest, ValuesOfOtherRanksAreLeftAlone) {
  ASSERT_TRUE(Apply("dp=2", {"*.m @[dp, _]", "*.scale.m @[dp]"}).ok());
  EXPECT_EQ(ShardingOf("h0.mlp.w1.m"), "@[dp, _]");
  EXPECT_EQ(ShardingOf("h0.ln1.scale.m"), "@[dp]");
  EXPECT_EQ(ShardingOf("h0.mlp.b1.m"), "none");
}

// Where hints differ, layers do.
TEST_F(StatedShardingsTest, LayersWithOtherHintsAreNotAlike) {
  const graph::Graph forward = Forward(12);
  const auto num_copies = [&](const std::vector<std::string>& stated) {
    return FindRepeatedLayers(forward, Hints(stated), kLeastLayers).num_copies;
  };
  EXPECT_EQ(num_copies({}), 12);
  EXPECT_EQ(num_copies({"h*.mlp.w1 @[_, dp]"}), 12);
  EXPECT_EQ(num_copies({"h{0-6}.mlp.w1 @[_, dp]"}), 7);
  EXPECT_EQ(num_copies({"h{0-6}.mlp.w1.m @[_, dp]"}), 7);
}

}  // namespace
}  // namespace penstock::planner
