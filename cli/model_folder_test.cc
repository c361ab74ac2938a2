#include "cli/model_folder.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/generator.h"
#include "cli/inference.h"
#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "actors/checkpoint/safetensors.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/strategy/strategy.h"
#include "tests/support/command_line_fixture.h"
#include "tests/support/model_files.h"

namespace penstock::cli {
namespace {

using actors::SafetensorsSource;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;
namespace fs = std::filesystem;

class ModelFolderTest : public testing::CommandLineFixture {
 protected:
  static ForwardLayout LayoutOf(const std::string& strategy) {
    ForwardLayout layout;
    layout.strategy = **planner::ParseStrategy(strategy);
    return layout;
  }

  JobModel ModelOf(const ModelFolder& folder) const {
    return {registries_.models.FindModel(folder.config().model), folder.config().config};
  }

  // The logits of every token of a text.
  absl::StatusOr<Tensor> Logits(const ModelFolder& folder, const std::vector<int32_t>& text,
                                const std::string& strategy) const {
    const JobModel model = ModelOf(folder);
    ASSIGN_OR_RETURN(
        const std::unique_ptr<actors::Session> session,
        StartModel(registries_, model, graph::ModelUse::kPredict, 1, LayoutOf(strategy), nullptr));
    ASSIGN_OR_RETURN(const Parameters weights, folder.Weights(session->plan().states));
    RETURN_IF_ERROR(session->TakeKeptStates(*weights));
    Tensor tokens({DType::kI32, {1, model.config.context}});
    for (int64_t i = 0; i < model.config.context; ++i) {
      const auto at = static_cast<size_t>(i);
      tokens.As<int32_t>()[i] = at < text.size() ? text[at] : 0;
    }
    ASSIGN_OR_RETURN(actors::StepResult result, session->Run({{"tokens", tokens}}));
    return std::move(result.fetches[0].second);
  }

  // What follows a text if the likeliest token is always taken.
  absl::StatusOr<std::vector<int32_t>> Continue(const ModelFolder& folder,
                                                const std::vector<int32_t>& text, size_t count,
                                                const std::string& strategy) const {
    ASSIGN_OR_RETURN(const std::unique_ptr<Generator> generator,
                     Generator::Start(registries_, ModelOf(folder), 1, 4, LayoutOf(strategy),
                                      [&folder](const std::vector<planner::StatePlan>& parameters) {
                                        return folder.Weights(parameters);
                                      }));
    SampleOptions options;
    options.num_tokens = static_cast<int64_t>(count);
    options.temperature = 0;
    options.num_choices = folder.config().config.vocabulary;
    ASSIGN_OR_RETURN(const std::vector<Generator::Tokens> made,
                     generator->Generate(std::vector<Generator::Tokens>{text}, options, nullptr));
    return made[0];
  }
};

struct Fixture {
  const char* name;
  std::vector<const char*> strategies;
};

// Whole, and with heads and hidden units split.
const Fixture kFixtures[] = {
    {"gpt2", {"dp=1", "tp=2", "pp=2"}},
    {"llama", {"dp=1", "tp=2", "tp=4", "pp=2"}},
    {"llama_tied", {"dp=1", "tp=2", "tp=4", "pp=2"}},
    {"llama_rope_linear", {"dp=1", "tp=2"}},
    {"llama_rope_dynamic", {"dp=1"}},
    {"llama_rope_llama3", {"dp=1", "tp=2"}},
};

TEST_F(ModelFolderTest, LogitsAreThoseOfTransformers) {
  for (const Fixture& fixture : kFixtures) {
    const auto folder = ModelFolder::Open(registries_, testing::ModelFile(fixture.name));
    ASSERT_TRUE(folder.ok()) << folder.status();
    const Json expected = testing::ReadModelJson(StrCat(fixture.name, "/expected.json"));
    const auto tokens = expected["tokens"].get<std::vector<int32_t>>();
    const int64_t vocabulary = folder->config().config.vocabulary;
    for (const char* strategy : fixture.strategies) {
      SCOPED_TRACE(StrCat(fixture.name, " ", strategy));
      const absl::StatusOr<Tensor> logits = Logits(*folder, tokens, strategy);
      ASSERT_TRUE(logits.ok()) << logits.status();
      double error = 0;
      for (const size_t row : {0, 1}) {
        const auto values = expected["logits"][row].get<std::vector<double>>();
        ASSERT_EQ(static_cast<int64_t>(values.size()), vocabulary);
        const int64_t first = row == 0 ? 0 : (static_cast<int64_t>(tokens.size()) - 1) * vocabulary;
        for (int64_t i = 0; i < vocabulary; ++i) {
          const double difference =
              ElementAsDouble(*logits, first + i) - values[static_cast<size_t>(i)];
          error = std::max(error, std::abs(difference));
        }
      }
      EXPECT_LT(error, 3e-5);
    }
  }
}

TEST_F(ModelFolderTest, ContinuationsAreThoseOfTransformers) {
  for (const Fixture& fixture : kFixtures) {
    const auto folder = ModelFolder::Open(registries_, testing::ModelFile(fixture.name));
    ASSERT_TRUE(folder.ok()) << folder.status();
    const Json expected = testing::ReadModelJson(StrCat(fixture.name, "/expected.json"));
    const auto continuation = expected["continuation"].get<std::vector<int32_t>>();
    for (const char* strategy : fixture.strategies) {
      const auto made = Continue(*folder, expected["tokens"].get<std::vector<int32_t>>(),
                                 continuation.size(), strategy);
      ASSERT_TRUE(made.ok()) << made.status();
      EXPECT_EQ(*made, continuation) << fixture.name << " " << strategy;
    }
  }
}

TEST_F(ModelFolderTest, TheCommandGeneratesText) {
  for (const char* name : {"gpt2", "llama"}) {
    const Json expected = testing::ReadModelJson(StrCat(name, "/expected.json"));
    std::vector<std::string> arguments = {"generate",      testing::ModelFile(name),
                                          "--prompt",      expected["prompt"],
                                          "--tokens",      "12",
                                          "--temperature", "0",
                                          "--json"};
    const Outcome one = Call(arguments);
    ASSERT_EQ(one.status, 0) << one.err;
    const Json json = Json::parse(one.out);
    EXPECT_EQ(json["tokens"][0], expected["continuation"]);
    arguments.insert(arguments.end(), {"--strategy", "tp=2"});
    const Outcome two = Call(arguments);
    ASSERT_EQ(two.status, 0) << two.err;
    EXPECT_EQ(Json::parse(two.out)["tokens"], json["tokens"]);
    EXPECT_EQ(Json::parse(two.out)["text"], json["text"]);
  }
  const Outcome few =
      Call({"generate", testing::ModelFile("gpt2"), "--prompt", "a", "--bytes", "9", "--json"});
  ASSERT_EQ(few.status, 0) << few.err;
  EXPECT_GE(Json::parse(few.out)["text"].get<std::string>().size(), 9);
  EXPECT_LE(Json::parse(few.out)["tokens"][0].size(), 9);
  // At a temperature like this every token is as likely, the one that ends a text among them.
  const Outcome ended = Call({"generate", testing::ModelFile("gpt2"), "--prompt", "a", "--bytes",
                              "100000", "--temperature", "1000"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_LT(ended.out.size(), 100000);
  EXPECT_THAT(ended.err, HasSubstr("; the model ended 1 text itself\n"));
  const Outcome none = Call({"generate", testing::ModelFile("llama_tied"), "--prompt", "a"});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("has no tokenizer.json"));
  EXPECT_THAT(Call({"generate", testing::ModelFile("gpt2"), "--prompt", "a\xff"}).err,
              HasSubstr("prompt 1: the text is not UTF-8 at byte 1"));
}

// Training starts from the weights, with the sizes that are in the folder.
TEST_F(ModelFolderTest, AJobStartsFromTheWeights) {
  Write("weights.toml", StrCat("[model]\nweights = \"", testing::ModelFile("llama"),
                               "\"\n[data]\ntext = [\"text.txt\"]\n[train]\nsteps = 2\nbatch = "
                               "4\n[parallel]\nstrategy = \"tp=2\"\n[sample]\nbytes = 0\n"));
  const Outcome outcome = Call({"run", Path("weights.toml"), "--dump", Path("dump")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("starting from the weights in "));
  const absl::StatusOr<actors::Checkpoint> stored =
      actors::Checkpoint::Open(testing::ModelFile("llama"));
  ASSERT_TRUE(stored.ok());
  const absl::StatusOr<Tensor> ours = ReadNpy(Path("dump/h1.attn.q_w.npy"));
  ASSERT_TRUE(ours.ok()) << ours.status();
  const Tensor theirs = *stored->Read("model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(theirs.dtype(), DType::kBF16);
  ASSERT_EQ(ours->shape(), Shape({16, 4, 4}));
  for (int64_t in = 0; in < 16; ++in) {
    for (int64_t out = 0; out < 16; ++out) {
      EXPECT_EQ(ElementAsDouble(*ours, in * 16 + out), ElementAsDouble(theirs, out * 16 + in));
    }
  }
  const Outcome name = Call({"run", Path("weights.toml"), "--set", "model.name=\"gpt\""});
  EXPECT_EQ(name.status, 2);
  EXPECT_THAT(name.err, HasSubstr("model.name = gpt: "));
  const Outcome layers = Call({"run", Path("weights.toml"), "--set", "model.layers=3"});
  EXPECT_EQ(layers.status, 2);
  EXPECT_THAT(layers.err,
              HasSubstr("has no tensor model.layers.2.input_layernorm.weight [16], which is"));
}

// ---- What is wrong in a folder.

// The tensors of a file in the tree, to be changed and written again.
class ChangedWeights {
 public:
  ChangedWeights()
      : file_(*actors::SafetensorsFile::Open(testing::ModelFile("gpt2/model.safetensors"))) {
    for (const actors::SafetensorsTensor& tensor : file_.header().tensors) {
      std::vector<std::byte> bytes(tensor.type.num_bytes());
      EXPECT_TRUE(file_.Read(tensor, bytes.data()).ok());
      tensors_.push_back({tensor.name, tensor.type, std::move(bytes)});
    }
  }

  struct Stored {
    std::string name;
    TensorType type;
    std::vector<std::byte> bytes;
  };
  std::vector<Stored>& tensors() { return tensors_; }
  Stored& Find(const std::string& name) {
    for (Stored& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors_[0];
  }

  void Write(const std::string& path) {
    std::vector<SafetensorsSource> sources;
    for (const Stored& tensor : tensors_) {
      sources.push_back({tensor.name, tensor.type, [&tensor]() -> absl::StatusOr<const std::byte*> {
                           return tensor.bytes.data();
                         }});
    }
    fs::remove(path);
    EXPECT_TRUE(actors::WriteSafetensors(path, sources, {}).ok());
  }

 private:
  actors::SafetensorsFile file_;
  std::vector<Stored> tensors_;
};

TEST_F(ModelFolderTest, AMissingOrWrongTensorIsRefusedByName) {
  const std::string folder = Path("model");
  fs::create_directory(folder);
  fs::copy_file(testing::ModelFile("gpt2/config.json"), folder + "/config.json");
  const std::string weights = folder + "/model.safetensors";
  const auto error = [&](ChangedWeights changed) {
    changed.Write(weights);
    const auto opened = ModelFolder::Open(registries_, folder);
    return std::string(ToStd(opened.status().message()));
  };
  EXPECT_EQ(error(ChangedWeights()), "");

  ChangedWeights missing;
  missing.tensors().erase(missing.tensors().begin());
  EXPECT_EQ(error(missing), StrCat(folder,
                                   ": has no tensor transformer.h.0.attn.c_attn.bias [24], "
                                   "which is the parameter h0.attn.qkv_b"));
  ChangedWeights shape;
  shape.Find("transformer.h.1.mlp.c_fc.weight").type.shape = {32, 8};
  EXPECT_EQ(error(shape), StrCat(folder,
                                 ": tensor transformer.h.1.mlp.c_fc.weight is f32[32, 8]; "
                                 "expected the shape [8, 32]"));
  ChangedWeights dtype;
  dtype.Find("transformer.ln_f.bias").type.dtype = DType::kI32;
  EXPECT_EQ(error(dtype), StrCat(folder,
                                 ": tensor transformer.ln_f.bias is i32[8]; expected f32, "
                                 "f64, f16 or bf16"));
  ChangedWeights extra;
  extra.tensors().push_back(
      {"transformer.h.2.ln_1.bias", {DType::kF32, {1}}, std::vector<std::byte>(4)});
  EXPECT_EQ(error(extra), StrCat(folder,
                                 ": tensor transformer.h.2.ln_1.bias (f32[1]) is no "
                                 "parameter of the model gpt with the sizes in "
                                 "config.json"));
  // Masks of attention are no parameters; logits may be stored beside the embedding they are tied
  // to.
  ChangedWeights known;
  known.tensors().push_back(
      {"transformer.h.1.attn.bias", {DType::kU8, {4}}, std::vector<std::byte>(4)});
  known.tensors().push_back(known.Find("transformer.wte.weight"));
  known.tensors().back().name = "lm_head.weight";
  EXPECT_EQ(error(known), "");
  known.tensors().back().bytes[0] ^= std::byte{1};
  EXPECT_EQ(error(known), StrCat(folder,
                                 ": tensor lm_head.weight is not equal to "
                                 "transformer.wte.weight, to which config.json ties it"));
  // Without the prefix, as the bare model is saved.
  ChangedWeights bare;
  for (auto& tensor : bare.tensors()) {
    tensor.name = tensor.name.substr(std::string("transformer.").size());
  }
  EXPECT_EQ(error(bare), "");
  bare.Find("h.1.ln_1.bias").name = "transformer.h.1.ln_1.bias";
  EXPECT_THAT(error(bare), HasSubstr("has no tensor transformer."));
}

TEST_F(ModelFolderTest, AConfigThatCannotBeFollowedIsRefused) {
  const auto error = [](const char* model, const char* key, const Json& value) {
    Json json = testing::ReadModelJson(StrCat(model, "/config.json"));
    json[key] = value;
    return std::string(ToStd(ParseFolderConfig(json.dump()).status().message()));
  };
  EXPECT_EQ(error("gpt2", "model_type", "bert"),
            "\"model_type\": expected \"gpt2\" or \"llama\", which is all that is supported, not "
            "\"bert\"");
  EXPECT_EQ(error("gpt2", "model_type", nullptr), "has no \"model_type\"");
  EXPECT_EQ(error("gpt2", "n_embd", 0),
            "\"n_embd\": expected an integer from 1 to 16777216, not 0");
  EXPECT_EQ(error("gpt2", "n_layer", -3),
            "\"n_layer\": expected an integer from 1 to 16777216, not -3");
  EXPECT_EQ(error("gpt2", "n_head", 1e99),
            "\"n_head\": expected an integer from 1 to 16777216, not 1e+99");
  EXPECT_EQ(error("gpt2", "vocab_size", nullptr), "has no \"vocab_size\"");
  EXPECT_EQ(error("gpt2", "n_inner", 33),
            "\"n_inner\": expected 32, which is all that is supported, not 33");
  EXPECT_THAT(error("gpt2", "activation_function", "relu"),
              StartsWith("\"activation_function\": expected \"gelu_new\""));
  EXPECT_THAT(error("gpt2", "scale_attn_by_inverse_layer_idx", true),
              StartsWith("\"scale_attn_by_inverse_layer_idx\": expected false"));
  EXPECT_EQ(error("gpt2", "layer_norm_epsilon", 0),
            "\"layer_norm_epsilon\": expected a positive number, not 0");
  EXPECT_EQ(error("gpt2", "eos_token_id", {1, "x"}),
            "\"eos_token_id\": expected a token or a list of tokens, not [1,\"x\"]");
  EXPECT_EQ(error("llama", "rope_parameters", {{"rope_type", "yarn"}}),
            "\"rope_type\": expected \"default\" or \"linear\" or \"dynamic\" or \"llama3\", which "
            "is all that is supported, not \"yarn\"");
  EXPECT_THAT(error("llama", "attention_bias", true), StartsWith("\"attention_bias\""));
  EXPECT_THAT(error("llama", "head_dim", 8), StartsWith("\"head_dim\": expected 4"));
  EXPECT_THAT(error("llama", "hidden_act", "gelu"), StartsWith("\"hidden_act\""));
  EXPECT_THAT(error("llama", "quantization_config", {{"bits", 4}}),
              StartsWith("\"quantization_config\""));
  EXPECT_THAT(ParseFolderConfig("[]").status().ToString(), HasSubstr("is no JSON object"));

  fs::create_directory(Path("model"));
  Json json = testing::ReadModelJson("llama/config.json");
  json["num_key_value_heads"] = 3;
  Write("model/config.json", json.dump());
  EXPECT_EQ(ToStd(ModelFolder::Open(registries_, Path("model")).status().message()),
            StrCat(Path("model/config.json"), ": kv_heads = 3 does not divide heads = 4"));
}

}  // namespace
}  // namespace penstock::cli
