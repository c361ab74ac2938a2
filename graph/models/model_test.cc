#include "graph/models/model.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/models/moe.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::graph {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class ModelTest : public ::testing::Test {
 protected:
  ModelTest() : ops_(BuiltinOps()), models_(BuiltinModels()) {}

  absl::StatusOr<Graph> Build(std::string_view name, const ModelConfig& config, ModelUse use,
                              int64_t batch) {
    return BuildModelGraph(ops_, *models_.FindModel(name), config, use, batch);
  }

  static ModelConfig Small() {
    ModelConfig config;
    config.layers = 2;
    config.width = 32;
    config.heads = 4;
    config.context = 8;
    config.expert_every = 2;
    return config;
  }

  static std::string TypeOf(const Graph& graph, std::string_view name) {
    const ValueId id = graph.FindValue(name);
    return id == kNoValue ? "no such value" : ToString(graph.value(id).type);
  }

  OpRegistry ops_;
  ModelRegistry models_;
};

TEST_F(ModelTest, EveryModelBuildsForEveryUse) {
  for (const std::string_view name : models_.ModelNames()) {
    for (const ModelUse use :
         {ModelUse::kTrain, ModelUse::kEvaluate, ModelUse::kPredict, ModelUse::kGenerate}) {
      if (use == ModelUse::kGenerate && !models_.FindModel(name)->can_generate) {
        EXPECT_FALSE(Build(name, Small(), use, 3).ok());
        continue;
      }
      for (const DType dtype : {DType::kF32, DType::kF64}) {
        ModelConfig config = Small();
        config.dtype = dtype;
        const absl::StatusOr<Graph> graph = Build(name, config, use, 3);
        ASSERT_TRUE(graph.ok()) << name << ": " << graph.status();
        EXPECT_TRUE(VerifyGraph(*graph).ok()) << VerifyGraph(*graph);
        const bool is_classifier = models_.FindModel(name)->reads_images;
        ASSERT_EQ(graph->returns().size(), is_classifier && use == ModelUse::kEvaluate ? 2 : 1);
        const TensorType& type = graph->value(graph->returns()[0].value).type;
        EXPECT_EQ(type.dtype, dtype);
        switch (use) {
          case ModelUse::kTrain:
            EXPECT_EQ(type.shape, Shape{});
            break;
          case ModelUse::kEvaluate:
            EXPECT_EQ(type.shape, Shape{3});
            break;
          case ModelUse::kPredict:
            EXPECT_EQ(type.shape.back(), is_classifier ? config.classes : config.vocabulary);
            break;
          case ModelUse::kGenerate:
            EXPECT_EQ(type.shape, Shape({3, 1, config.vocabulary}));
            EXPECT_EQ(TypeOf(*graph, "tokens"), "i32[3, 1]");
            EXPECT_EQ(TypeOf(*graph, "start"), "i32[3]");
            break;
        }
      }
    }
  }
}

TEST_F(ModelTest, GptHasTheShapesOfItsHeader) {
  const absl::StatusOr<Graph> graph = Build("gpt", Small(), ModelUse::kTrain, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(TypeOf(*graph, "tokens"), "i32[3, 8]");
  EXPECT_EQ(TypeOf(*graph, "labels"), "i32[3, 8]");
  EXPECT_EQ(TypeOf(*graph, "wte"), "f32[256, 32]");
  EXPECT_EQ(TypeOf(*graph, "wpe"), "f32[8, 32]");
  EXPECT_EQ(TypeOf(*graph, "h1.attn.qkv_w"), "f32[32, 3, 4, 8]");
  EXPECT_EQ(TypeOf(*graph, "h1.attn.qkv_b"), "f32[3, 4, 8]");
  EXPECT_EQ(TypeOf(*graph, "h1.attn.proj_w"), "f32[4, 8, 32]");
  EXPECT_EQ(TypeOf(*graph, "h1.mlp.w1"), "f32[32, 128]");
  EXPECT_EQ(TypeOf(*graph, "logits"), "f32[3, 8, 256]");
  EXPECT_EQ(TypeOf(*graph, "loss"), "f32[]");
}

TEST_F(ModelTest, LlamaHasTheShapesOfItsHeader) {
  ModelConfig config = Small();
  config.kv_heads = 2;
  absl::StatusOr<Graph> graph = Build("llama", config, ModelUse::kTrain, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(TypeOf(*graph, "h1.attn.q_w"), "f32[32, 4, 8]");
  EXPECT_EQ(TypeOf(*graph, "h1.attn.k_w"), "f32[32, 2, 8]");
  EXPECT_EQ(TypeOf(*graph, "h1.attn.v_w"), "f32[32, 2, 8]");
  EXPECT_EQ(TypeOf(*graph, "h1.attn.proj_w"), "f32[4, 8, 32]");
  // 8/3 of 32 is 85.3.
  EXPECT_EQ(TypeOf(*graph, "h1.mlp.gate"), "f32[32, 128]");
  EXPECT_EQ(TypeOf(*graph, "h1.mlp.down"), "f32[128, 32]");
  EXPECT_EQ(TypeOf(*graph, "head"), "f32[256, 32]");
  EXPECT_EQ(TypeOf(*graph, "wpe"), "no such value");
  config.is_tied = true;
  config.hidden = 40;
  graph = Build("llama", config, ModelUse::kGenerate, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(TypeOf(*graph, "head"), "no such value");
  EXPECT_EQ(TypeOf(*graph, "h1.mlp.up"), "f32[32, 40]");
  // Of the heads of keys and values only.
  EXPECT_EQ(TypeOf(*graph, "h1.attn.cache"), "f32[3, 8, 2, 2, 8]");
}

TEST_F(ModelTest, MoeHasTheShapesOfItsHeader) {
  ModelConfig config = Small();
  config.experts = 5;
  config.top_k = 2;
  config.capacity_factor = 1.25;
  const absl::StatusOr<Graph> graph = Build("moe", config, ModelUse::kTrain, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  // The last of every two blocks has experts.
  EXPECT_EQ(TypeOf(*graph, "h0.mlp.w1"), "f32[32, 128]");
  EXPECT_EQ(TypeOf(*graph, "h0.moe.w1"), "no such value");
  EXPECT_EQ(TypeOf(*graph, "h1.mlp.w1"), "no such value");
  EXPECT_EQ(TypeOf(*graph, "h1.moe.router"), "f32[32, 5]");
  EXPECT_EQ(TypeOf(*graph, "h1.moe.w1"), "f32[5, 32, 128]");
  EXPECT_EQ(TypeOf(*graph, "h1.moe.w2"), "f32[5, 128, 32]");
  // 1.25 times an even share, 2 * 8 / 5, is 4.
  EXPECT_EQ(TypeOf(*graph, "h1.moe.dispatched"), "f32[5, 3, 4, 32]");
  EXPECT_EQ(TypeOf(*graph, "h1.moe.balance"), "f32[]");
  EXPECT_EQ(TypeOf(*graph, "loss"), "f32[]");
}

// Nothing is dropped, nor balanced, where nothing is trained.
TEST_F(ModelTest, MoeDropsTokensInTrainingOnly) {
  for (const ModelUse use : {ModelUse::kEvaluate, ModelUse::kPredict}) {
    const absl::StatusOr<Graph> graph = Build("moe", Small(), use, 3);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(TypeOf(*graph, "h1.moe.dispatched"), "f32[8, 3, 8, 32]");
    EXPECT_EQ(TypeOf(*graph, "h1.moe.balance"), "no such value");
  }
}

TEST_F(ModelTest, CapacityIsAShareOfTheSequence) {
  ModelConfig config;
  config.context = 100;
  config.experts = 8;
  config.top_k = 2;
  const auto capacity = [&](double factor) {
    config.capacity_factor = factor;
    return ExpertCapacity(config, ModelUse::kTrain);
  };
  EXPECT_EQ(capacity(1), 25);
  EXPECT_EQ(capacity(1.25), 32);   // 31.25
  EXPECT_EQ(capacity(1e-9), 1);    // at least one
  EXPECT_EQ(capacity(1e30), 100);  // at most all
  EXPECT_EQ(capacity(0), 100);     // dropless
}

// The published models have these many parameters (tied embeddings counted once).
TEST_F(ModelTest, PresetsHaveThePublishedSizes) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {
      {"gpt2-124m", 124439808},    {"gpt2-350m", 354823168},       {"gpt2-774m", 774030080},
      {"gpt2-1558m", 1557611200},  {"tinyllama-1.1b", 1100048384}, {"llama2-7b", 6738415616},
      {"llama2-70b", 68976648192}, {"llama3-8b", 8030261248},      {"llama3-70b", 70553706496},
  };
  for (const auto& [name, parameters] : sizes) {
    const Preset* preset = models_.FindPreset(name);
    ASSERT_NE(preset, nullptr) << name;
    const absl::StatusOr<Graph> graph = Build(preset->model, preset->config, ModelUse::kPredict, 1);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(NumParameters(*graph), parameters) << name;
  }
}

TEST_F(ModelTest, EveryPresetBuilds) {
  for (const std::string_view name : models_.PresetNames()) {
    const Preset* preset = models_.FindPreset(name);
    const absl::StatusOr<Graph> graph = Build(preset->model, preset->config, ModelUse::kTrain, 1);
    EXPECT_TRUE(graph.ok()) << name << ": " << graph.status();
  }
}

TEST_F(ModelTest, EveryRandomOperatorAndParameterHasAStreamOfItsOwn) {
  const absl::StatusOr<Graph> graph = Build("gpt", Small(), ModelUse::kTrain, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::set<int64_t> streams;
  for (const Node& node : graph->nodes()) {
    if (node.attributes.Find("stream") == nullptr) continue;
    EXPECT_TRUE(streams.insert(node.attributes.GetInt("stream", -1)).second);
  }
  // wte, wpe, four weights a layer; dropout after the embedding and twice a layer.
  EXPECT_EQ(streams.size(), 2 + 2 * 4 + 1 + 2 * 2);
}

TEST_F(ModelTest, DropoutDoesNotChangeTheInitialisation) {
  const absl::StatusOr<Graph> train = Build("gpt", Small(), ModelUse::kTrain, 3);
  const absl::StatusOr<Graph> predict = Build("gpt", Small(), ModelUse::kPredict, 1);
  ASSERT_TRUE(train.ok() && predict.ok());
  for (const Node& node : predict->nodes()) {
    EXPECT_NE(node.op->name(), "dropout");
    if (node.op->name() != "parameter") continue;
    const std::string& name = predict->value(node.results[0]).name;
    const ValueId other = train->FindValue(name);
    ASSERT_NE(other, kNoValue) << name;
    EXPECT_EQ(train->node(train->value(other).producer).attributes, node.attributes) << name;
  }
}

TEST_F(ModelTest, HintsNameParametersSequencesAndHeads) {
  for (const std::string_view name : models_.ModelNames()) {
    const absl::StatusOr<Graph> graph = Build(name, Small(), ModelUse::kTrain, 3);
    ASSERT_TRUE(graph.ok());
    for (const SplitHint& hint : models_.FindModel(name)->tensor_splits) {
      int matches = 0;
      for (const Node& node : graph->nodes()) {
        if ((node.op->name() == "parameter") != hint.is_for_parameters()) continue;
        const Value& value = graph->value(node.results[0]);
        if (!MatchesPattern(hint.pattern, value.name)) continue;
        ++matches;
        if (hint.is_sequence || hint.axis == "cp") {
          EXPECT_EQ(value.type.shape[hint.dim], Small().context);
        }
        if (hint.axis == "cp") {
          EXPECT_EQ(node.op->name(), "input");
        }
        if (hint.axis == "ulysses") {
          EXPECT_EQ(value.type.shape[hint.dim], Small().heads);
        }
        EXPECT_LT(hint.dim, static_cast<int>(value.type.shape.size()));
      }
      EXPECT_GT(matches, 0) << name << " " << hint.pattern;
    }
  }
}

// What a model does not name changes nothing.
TEST_F(ModelTest, SizesThatAreNotNamedAreNotRead) {
  const std::pair<std::string_view, void (*)(ModelConfig&)> changes[] = {
      {"layers", [](ModelConfig& c) { c.layers = 3; }},
      {"width", [](ModelConfig& c) { c.width = 64; }},
      {"heads", [](ModelConfig& c) { c.heads = 2; }},
      {"context", [](ModelConfig& c) { c.context = 12; }},
      {"vocabulary", [](ModelConfig& c) { c.vocabulary = 300; }},
      {"dropout", [](ModelConfig& c) { c.dropout = 0.3; }},
      {"kv_heads", [](ModelConfig& c) { c.kv_heads = 2; }},
      {"hidden", [](ModelConfig& c) { c.hidden = 40; }},
      {"rotary_base", [](ModelConfig& c) { c.rotary_base = 5e3; }},
      {"norm_epsilon", [](ModelConfig& c) { c.norm_epsilon = 1e-3; }},
      {"tied", [](ModelConfig& c) { c.is_tied = true; }},
      {"experts", [](ModelConfig& c) { c.experts = 4; }},
      {"top_k", [](ModelConfig& c) { c.top_k = 1; }},
      {"capacity_factor", [](ModelConfig& c) { c.capacity_factor = 2; }},
      {"balance", [](ModelConfig& c) { c.balance = 0.1; }},
      {"expert_every", [](ModelConfig& c) { c.expert_every = 1; }},
      {"image", [](ModelConfig& c) { c.image = 16; }},
      {"channels", [](ModelConfig& c) { c.channels = 3; }},
      {"classes", [](ModelConfig& c) { c.classes = 7; }}};
  for (const std::string_view name : models_.ModelNames()) {
    const std::vector<std::string_view>& sizes = models_.FindModel(name)->sizes;
    const absl::StatusOr<Graph> before = Build(name, Small(), ModelUse::kTrain, 3);
    ASSERT_TRUE(before.ok()) << name << ": " << before.status();
    size_t num_read = 0;
    for (const auto& [size, change] : changes) {
      ModelConfig config = Small();
      change(config);
      const absl::StatusOr<Graph> after = Build(name, config, ModelUse::kTrain, 3);
      ASSERT_TRUE(after.ok()) << name << " " << size << ": " << after.status();
      const bool is_read = PrintGraph(*after) != PrintGraph(*before);
      const bool is_named = std::find(sizes.begin(), sizes.end(), size) != sizes.end();
      EXPECT_EQ(is_read, is_named) << name << " " << size;
      num_read += is_named ? 1 : 0;
    }
    EXPECT_EQ(num_read, sizes.size()) << name << " names a size that there is not";
  }
}

TEST_F(ModelTest, SizesThatMakeNoSenseAreRefused) {
  const auto error = [this](const ModelConfig& config) {
    return std::string(ToStd(Build("gpt", config, ModelUse::kTrain, 1).status().message()));
  };
  ModelConfig config = Small();
  config.heads = 5;
  EXPECT_THAT(error(config), HasSubstr("heads = 5 does not divide width = 32"));
  config = Small();
  config.layers = 0;
  EXPECT_THAT(error(config), HasSubstr("layers = 0"));
  config = Small();
  config.dropout = 1;
  EXPECT_THAT(error(config), HasSubstr("dropout = 1"));
  config = Small();
  config.dtype = DType::kI32;
  EXPECT_THAT(error(config), HasSubstr("dtype = i32"));
  const auto moe_error = [this](const ModelConfig& config) {
    return std::string(ToStd(Build("moe", config, ModelUse::kTrain, 1).status().message()));
  };
  config = Small();
  config.heads = 5;
  EXPECT_THAT(moe_error(config), HasSubstr("heads = 5 does not divide width = 32"));
  const auto llama_error = [this](const ModelConfig& config) {
    return std::string(ToStd(Build("llama", config, ModelUse::kTrain, 1).status().message()));
  };
  config = Small();
  config.kv_heads = 3;
  EXPECT_THAT(llama_error(config), HasSubstr("kv_heads = 3 does not divide heads = 4"));
  config = Small();
  config.heads = 32;
  EXPECT_THAT(llama_error(config), HasSubstr("heads = 32: each has 1 of the width, an odd number"));
  config = Small();
  config.rotary_base = 0;
  EXPECT_THAT(llama_error(config), HasSubstr("rotary_base = 0: must be positive"));
  config = Small();
  config.norm_epsilon = -1;
  EXPECT_THAT(llama_error(config), HasSubstr("norm_epsilon = -1: must be positive"));
  config = Small();
  config.experts = 0;
  EXPECT_THAT(moe_error(config), HasSubstr("experts = 0: must lie between 1 and"));
  config = Small();
  config.top_k = 9;
  EXPECT_THAT(moe_error(config), HasSubstr("top_k = 9: must lie between 1 and 8"));
  config = Small();
  config.expert_every = 3;
  EXPECT_THAT(moe_error(config), HasSubstr("expert_every = 3: must lie between 1 and 2"));
  config = Small();
  config.capacity_factor = -1;
  EXPECT_THAT(moe_error(config), HasSubstr("capacity_factor = -1: must be at least 0"));
  config = Small();
  config.balance = -1;
  EXPECT_THAT(moe_error(config), HasSubstr("balance = -1: must be at least 0"));
  EXPECT_FALSE(Build("gpt", Small(), ModelUse::kTrain, 0).ok());
}

// As torchvision's resnet18, whose stages, too, have a bias in the last layer alone.
TEST_F(ModelTest, Resnet18HasTheParametersOfThePaper) {
  const Preset* preset = models_.FindPreset("resnet18");
  ASSERT_NE(preset, nullptr);
  const absl::StatusOr<Graph> graph = Build("resnet", preset->config, ModelUse::kTrain, 2);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(NumParameters(*graph), 11689512);
  EXPECT_EQ(TypeOf(*graph, "images"), "f32[2, 3, 224, 224]");
  EXPECT_EQ(TypeOf(*graph, "stem.w"), "f32[64, 3, 7, 7]");
  EXPECT_EQ(TypeOf(*graph, "s0.h0.out"), "f32[2, 64, 56, 56]");
  EXPECT_EQ(TypeOf(*graph, "s3.h1.out"), "f32[2, 512, 7, 7]");
  EXPECT_EQ(TypeOf(*graph, "s1.h0.down.w"), "f32[128, 64, 1, 1]");
  ModelConfig config = preset->config;
  config.image = 16;
  const absl::StatusOr<Graph> small = Build("resnet", config, ModelUse::kTrain, 2);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(TypeOf(*small, "s0.h0.out"), "f32[2, 64, 16, 16]");
  config.image = 7;
  EXPECT_FALSE(Build("resnet", config, ModelUse::kTrain, 2).ok());
}

TEST_F(ModelTest, NamesAreTakenOnce) {
  EXPECT_THAT(models_.ModelNames(), Contains("gpt"));
  EXPECT_THAT(models_.PresetNames(), Contains("gpt3-175b"));
  EXPECT_EQ(models_.FindModel("gpt3-175b"), nullptr);
  EXPECT_FALSE(models_.AddModel(*models_.FindModel("gpt")).ok());
  EXPECT_FALSE(models_.AddPreset({"gpt-1m", "gpt", {}}).ok());
  EXPECT_FALSE(models_.AddPreset({"new", "unheard-of", {}}).ok());
}

TEST(MatchesPatternTest, BracesStandForNumbers) {
  EXPECT_TRUE(MatchesPattern("h{3-11}.mlp.w1", "h3.mlp.w1"));
  EXPECT_TRUE(MatchesPattern("h{3-11}.mlp.w1", "h11.mlp.w1"));
  EXPECT_FALSE(MatchesPattern("h{3-11}.mlp.w1", "h2.mlp.w1"));
  EXPECT_FALSE(MatchesPattern("h{3-11}.mlp.w1", "h12.mlp.w1"));
  EXPECT_FALSE(MatchesPattern("h{3-11}.mlp.w1", "h31.mlp.w1"));
  EXPECT_FALSE(MatchesPattern("h{3-11}", "hx"));
  EXPECT_FALSE(MatchesPattern("h{0-1}", "h"));
  EXPECT_TRUE(MatchesPattern("*{2-2}.w", "layer.2.w"));
  EXPECT_FALSE(MatchesPattern("h{0-9}", "h99999999999999999999"));
  EXPECT_TRUE(MatchesPattern("a{b", "a{b"));
}

TEST(MatchesPatternTest, AStarStandsForAnyCharacters) {
  EXPECT_TRUE(MatchesPattern("wte", "wte"));
  EXPECT_FALSE(MatchesPattern("wte", "wte2"));
  EXPECT_FALSE(MatchesPattern("wte", "wt"));
  EXPECT_TRUE(MatchesPattern("h*.mlp.w1", "h12.mlp.w1"));
  EXPECT_FALSE(MatchesPattern("h*.mlp.w1", "h12.mlp.w2"));
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("a*b*c", "aXbXbYc"));
  EXPECT_FALSE(MatchesPattern("a*b*c", "aXbX"));
}

}  // namespace
}  // namespace penstock::graph
