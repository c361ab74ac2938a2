#include "cli/generator.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/feeds.h"
#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/checkpoint/checkpoint.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/strategy/strategy.h"
#include "tests/support/command_line_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

// An untrained model with large weights: what it makes is not always the same byte.
class GeneratorTest : public testing::CommandLineFixture {
 protected:
  static constexpr int64_t kContext = 24;

  explicit GeneratorTest(const std::string& name = "gpt") {
    model_.model = registries_.models.FindModel(name);
    model_.config = {.layers = 4,
                     .width = 16,
                     .heads = 4,
                     .context = kContext,
                     .vocabulary = 256,
                     .dropout = 0.1,
                     .dtype = DType::kF64,
                     .kv_heads = 2,
                     .experts = 4};
    absl::StatusOr<std::unique_ptr<actors::Session>> session =
        StartModel(registries_, model_, graph::ModelUse::kPredict, 1, ForwardLayout(), nullptr);
    EXPECT_TRUE(session.ok()) << session.status();
    predict_ = *std::move(session);
    for (const planner::StatePlan& state : predict_->plan().states) {
      Tensor value = *predict_->Fetch(state.name);
      for (int64_t i = 0; i < value.num_elements(); ++i) value.As<double>()[i] *= 8;
      EXPECT_TRUE(predict_->SetState(state.name, value).ok());
    }
    parameters_ = *predict_->KeepStates(actors::StateSelection::kParameters);
  }

  std::unique_ptr<Generator> Start(const std::string& strategy, int64_t slots,
                                   int64_t prompt_tokens = 8) const {
    ForwardLayout layout;
    layout.strategy = **planner::ParseStrategy(strategy);
    auto generator =
        Generator::Start(registries_, model_, slots, prompt_tokens, layout,
                         [this](const std::vector<planner::StatePlan>&) { return parameters_; });
    EXPECT_TRUE(generator.ok()) << strategy << ": " << generator.status();
    return *std::move(generator);
  }

  static std::vector<Generator::Tokens> Encode(const std::vector<std::string>& texts) {
    std::vector<Generator::Tokens> tokens;
    for (const std::string& text : texts) tokens.emplace_back(text.begin(), text.end());
    return tokens;
  }

  // The texts that the generator makes.
  static absl::StatusOr<std::vector<std::string>> Generate(Generator& generator,
                                                           const std::vector<std::string>& prompts,
                                                           const SampleOptions& options) {
    ASSIGN_OR_RETURN(const std::vector<Generator::Tokens> made,
                     generator.Generate(Encode(prompts), options, nullptr));
    std::vector<std::string> texts;
    for (const Generator::Tokens& tokens : made) texts.emplace_back(tokens.begin(), tokens.end());
    return texts;
  }

  // What the model makes of a prompt when it reads the whole text for each byte.
  std::string Expected(const std::string& prompt, const SampleOptions& options) const {
    std::string text = prompt.substr(prompt.size() - std::min<size_t>(prompt.size(), kContext));
    std::string made;
    while (static_cast<int64_t>(made.size()) < options.num_tokens) {
      if (text.size() > kContext) text = text.substr(text.size() - kContext / 2);
      Tensor tokens({DType::kI32, {1, kContext}});
      for (size_t i = 0; i < kContext; ++i) {
        tokens.As<int32_t>()[i] = i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
      }
      const auto result = predict_->Run({{"tokens", tokens}});
      EXPECT_TRUE(result.ok()) << result.status();
      const double* logits = result->fetches[0].second.As<double>() + (text.size() - 1) * 256;
      const char byte = static_cast<char>(PickToken({logits, 256}, options, 0));
      text += byte;
      made += byte;
    }
    return made;
  }

  static SampleOptions Likeliest(int64_t num_tokens) {
    SampleOptions options;
    options.num_tokens = num_tokens;
    options.temperature = 0;
    return options;
  }

  JobModel model_;
  std::unique_ptr<actors::Session> predict_;
  Parameters parameters_;
};

class LlamaGeneratorTest : public GeneratorTest {
 protected:
  LlamaGeneratorTest() : GeneratorTest("llama") {}
};

class MoeGeneratorTest : public GeneratorTest {
 protected:
  MoeGeneratorTest() : GeneratorTest("moe") {}
};

// Through several windows, and from prompts as long as the context and longer.
const std::vector<std::string> kPrompts = {"the quick brown fox", "a",
                                           "0123456789012345678901234567", "jumps over",
                                           "012345678901234567890123"};

TEST_F(GeneratorTest, GivesTheTextOfWholeWindows) {
  const std::unique_ptr<Generator> generator = Start("dp=1", 2);
  const auto texts = Generate(*generator, kPrompts, Likeliest(40));
  ASSERT_TRUE(texts.ok()) << texts.status();
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ((*texts)[i], Expected(kPrompts[i], Likeliest(40))) << kPrompts[i];
  }
  // Not one byte over and over.
  EXPECT_GT(std::set<char>((*texts)[0].begin(), (*texts)[0].end()).size(), 3u);
  EXPECT_EQ(generator->times().tokens, 5 * 40);
  // Two at a time, and no step without a sequence.
  EXPECT_GE(generator->times().steps, 100);
  EXPECT_LE(generator->times().steps, 120);
}

TEST_F(MoeGeneratorTest, GivesTheTextOfWholeWindows) {
  const auto texts = Generate(*Start("dp=1", 3), kPrompts, Likeliest(30));
  ASSERT_TRUE(texts.ok()) << texts.status();
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ((*texts)[i], Expected(kPrompts[i], Likeliest(30))) << kPrompts[i];
  }
}

// With the experts split, each of them, or the devices of a stage, have the tokens of all slots.
TEST_F(MoeGeneratorTest, AnyStrategyGivesTheSameText) {
  SampleOptions options = Likeliest(20);
  options.temperature = 0.9;
  const auto expected = Generate(*Start("dp=1", 1), kPrompts, options);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const auto& [strategy, slots] :
       {std::pair("tp=2", 3), std::pair("dp=2,ep=2", 2), std::pair("pp=2", 2),
        std::pair("dp=4,ep=2", 4), std::pair("dp=2,ep=2,tp=2", 2)}) {
    const auto texts = Generate(*Start(strategy, slots), kPrompts, options);
    ASSERT_TRUE(texts.ok()) << strategy << ": " << texts.status();
    EXPECT_EQ(*texts, *expected) << strategy << ", " << slots << " slots";
  }
}

TEST_F(LlamaGeneratorTest, GivesTheTextOfWholeWindows) {
  const auto texts = Generate(*Start("dp=1", 3), kPrompts, Likeliest(30));
  ASSERT_TRUE(texts.ok()) << texts.status();
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ((*texts)[i], Expected(kPrompts[i], Likeliest(30))) << kPrompts[i];
  }
  EXPECT_GT(std::set<char>((*texts)[0].begin(), (*texts)[0].end()).size(), 3u);
}

// Of which only the heads of keys and values are kept.
TEST_F(LlamaGeneratorTest, AnyStrategyGivesTheSameText) {
  SampleOptions options = Likeliest(20);
  options.temperature = 0.9;
  const auto expected = Generate(*Start("dp=1", 1), kPrompts, options);
  ASSERT_TRUE(expected.ok()) << expected.status();
  // tp=4: two devices keep the same head of keys.
  for (const char* strategy : {"tp=2", "tp=4", "pp=2", "dp=2,tp=2"}) {
    const auto texts = Generate(*Start(strategy, 2), kPrompts, options);
    ASSERT_TRUE(texts.ok()) << strategy << ": " << texts.status();
    EXPECT_EQ(*texts, *expected) << strategy;
  }
  model_.config.step_tokens = 1;
  const auto graph = graph::BuildModelGraph(registries_.ops, *model_.model, model_.config,
                                            graph::ModelUse::kGenerate, 3);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->value(graph->FindValue("h0.attn.cache")).type.shape,
            Shape({3, kContext, 2, 2, 4}));
}

// A text ends at one of the end tokens, which is no part of it, and where the caller ends it.
TEST_F(GeneratorTest, TextsEndEarly) {
  const std::string whole = (*Generate(*Start("dp=1", 1), {kPrompts[0]}, Likeliest(40)))[0];
  SampleOptions options = Likeliest(40);
  options.end_tokens = {static_cast<unsigned char>(whole[12])};
  const size_t end = whole.find(whole[12]);
  EXPECT_EQ((*Generate(*Start("dp=1", 1), {kPrompts[0]}, options))[0], whole.substr(0, end));

  std::string seen;
  const auto made = Start("dp=1", 1)->Generate(Encode({kPrompts[0]}), Likeliest(40),
                                               [&seen](size_t /*prompt*/, int32_t token) {
                                                 seen.push_back(static_cast<char>(token));
                                                 return seen.size() < 7;
                                               });
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(seen, whole.substr(0, 7));
  EXPECT_EQ(made->at(0).size(), 7u);
}

TEST_F(GeneratorTest, ATokenThatTheModelDoesNotKnowIsRefused) {
  const auto made =
      Start("dp=1", 1)->Generate(std::vector<Generator::Tokens>{{1, 256}}, Likeliest(3), nullptr);
  EXPECT_THAT(made.status().ToString(),
              HasSubstr("a prompt has the token 256, but the model knows 256"));
}

// Sampled, so that every logit counts.
TEST_F(GeneratorTest, AnyStrategyAndAnyNumberOfSlotsGiveTheSameText) {
  SampleOptions options;
  options.num_tokens = 40;
  options.temperature = 0.9;
  options.top_k = 20;
  options.seed = 7;
  const auto expected = Generate(*Start("dp=1", 1), kPrompts, options);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_NE((*expected)[0], Expected(kPrompts[0], Likeliest(40)));
  for (const auto& [strategy, slots] :
       {std::pair("dp=1", 5), std::pair("tp=2", 2), std::pair("pp=2", 3), std::pair("dp=2", 2),
        std::pair("dp=2,tp=2", 4), std::pair("dp=2,tp=2,pp=2", 2), std::pair("pp=2,vpp=2", 2),
        // What splits sequences in training.
        std::pair("cp=2", 3), std::pair("dp=2,cp=2,ulysses=true", 1), std::pair("tp=2,sp=true", 3),
        // What splits states in training.
        std::pair("dp=2,zero=3", 2)}) {
    const auto texts = Generate(*Start(strategy, slots), kPrompts, options);
    ASSERT_TRUE(texts.ok()) << strategy << ": " << texts.status();
    EXPECT_EQ(*texts, *expected) << strategy << ", " << slots << " slots";
  }
  // Prompts in one step, or in one a byte.
  for (const int64_t prompt_tokens : {1, 2, 1000}) {
    EXPECT_EQ(*Generate(*Start("dp=1", 2, prompt_tokens), kPrompts, options), *expected);
  }
  options.seed = 8;
  EXPECT_NE(*Generate(*Start("dp=1", 2), kPrompts, options), *expected);
}

// Keys and values are added where they are kept: a step copies no cache.
TEST_F(GeneratorTest, TheCacheIsWrittenInPlace) {
  model_.config.step_tokens = 1;
  for (const char* const strategy : {"dp=1", "tp=2", "pp=2"}) {
    ForwardLayout layout;
    layout.strategy = **planner::ParseStrategy(strategy);
    const auto session =
        StartModel(registries_, model_, graph::ModelUse::kGenerate, 2, layout, parameters_);
    ASSERT_TRUE(session.ok()) << session.status();
    const planner::Plan& plan = (*session)->plan();
    int num_caches = 0;
    for (const planner::StatePlan& state : plan.states) num_caches += !state.is_parameter;
    EXPECT_EQ(num_caches, model_.config.layers);
    for (const planner::DevicePlan& device : plan.devices) {
      for (const planner::ActorPlan& actor : device.actors) {
        if (actor.kind != planner::ActorKind::kKernel) continue;
        EXPECT_NE(plan.kernels[actor.kernel].op, "copy") << strategy << ": " << actor.name;
      }
    }
  }
}

// Prefill and decode have one copy of the weights, keys and values.
TEST_F(GeneratorTest, BothSessionsUseTheSameMemory) {
  for (const char* const strategy : {"dp=1", "tp=2", "pp=2", "dp=2,tp=2", "dp=2,pp=2"}) {
    for (const int64_t prompt_tokens : {1, 8, 20}) {
      const std::unique_ptr<Generator> generator = Start(strategy, 2, prompt_tokens);
      const std::vector<actors::Session*> sessions = generator->sessions();
      EXPECT_FALSE(sessions[0]->shares_memory());
      EXPECT_TRUE(sessions[1]->shares_memory()) << strategy << ", prompts of " << prompt_tokens;
    }
  }
}

TEST_F(GeneratorTest, APromptNeedsAToken) {
  const auto texts = Generate(*Start("dp=1", 1), {"a", ""}, Likeliest(3));
  EXPECT_TRUE(absl::IsInvalidArgument(texts.status()));
  EXPECT_EQ(*Generate(*Start("dp=1", 1), {"a"}, Likeliest(0)), std::vector<std::string>{""});
}

TEST_F(GeneratorTest, TheCommandUsesACheckpoint) {
  const std::string folder = StrCat("checkpoint.path=\"", Path("checkpoints"), "\"");
  ASSERT_EQ(Call({"run", Path("job.toml"), "--set", folder}).status, 0);
  const std::vector<std::string> generate = {
      "generate", Path("checkpoints"), "--prompt", "the ", "--bytes", "12", "--temperature", "0"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = generate;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments);
  };
  const Outcome outcome = with({"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["text"].get<std::string>().size(), 12u);
  EXPECT_GT(json["tokens_per_s"].get<double>(), 0);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--strategy", "tp=2"},
        std::vector<std::string>{"--strategy", "tp=2", "--procs", "2"},
        std::vector<std::string>{"--strategy", "pp=2", "--prompt", "fox", "--slots", "1"}}) {
    std::vector<std::string> arguments = more;
    arguments.push_back("--json");
    const Outcome other = with(arguments);
    ASSERT_EQ(other.status, 0) << other.err;
    EXPECT_EQ(nlohmann::json::parse(other.out)["text"], json["text"]) << more[1];
  }
  // What only a training uses is ignored.
  for (const char* const strategy :
       {"tp=2,subbatches=2", "dp=2,zero=3,offload=all", "pp=2,recompute=full", "tp=2,splits=cost",
        "cp=2,ulysses=true", "dp=2,tp=2,pp=2,sp=true"}) {
    const Outcome other = with({"--json", "--strategy", strategy});
    ASSERT_EQ(other.status, 0) << strategy << ": " << other.err;
    EXPECT_EQ(nlohmann::json::parse(other.out)["text"], json["text"]) << strategy;
  }
  // Prompts of files, and of standard input.
  Write("prompt.txt", "the ");
  const int input = dup(0);
  const int file = open(Path("prompt.txt").c_str(), O_RDONLY);
  ASSERT_TRUE(input >= 0 && file >= 0);
  for (const std::string& source : {Path("prompt.txt"), std::string("-")}) {
    lseek(file, 0, SEEK_SET);
    dup2(file, 0);
    const Outcome other = Call({"generate", Path("checkpoints"), "--prompt-file", source, "--bytes",
                                "12", "--temperature", "0", "--json"});
    dup2(input, 0);
    ASSERT_EQ(other.status, 0) << other.err;
    EXPECT_EQ(nlohmann::json::parse(other.out)["text"], json["text"]) << source;
  }
  close(file);
  close(input);
  const Outcome text = with({});
  EXPECT_EQ(text.out, StrCat("the ", json["text"].get<std::string>(), "\n"));
  EXPECT_THAT(text.err, HasSubstr("12 tokens in "));
  EXPECT_THAT(text.err, HasSubstr("; prompts: 4 tokens read in "));
  EXPECT_EQ(json["prompt_tokens"], 4);

  const Outcome nothing = Call({"generate", Path("checkpoints"), "--prompt", "a", "--tokens", "0"});
  EXPECT_EQ(nothing.status, 0);
  EXPECT_EQ(nothing.err, "0 tokens in 0.00 s\n");

  EXPECT_EQ(with({"--strategy", "tp=3"}).status, 2);
  EXPECT_EQ(with({"--procs", "2"}).status, 2);
  EXPECT_EQ(Call({"generate", Path("none"), "--prompt", "a"}).status, 2);
  const Outcome none = Call({"generate", Path("checkpoints")});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("give --prompt TEXT or --prompt-file FILE"));
  EXPECT_THAT(Call({"generate", Path("checkpoints"), "--prompt-file", Path("none")}).err,
              HasSubstr("--prompt-file " + Path("none") + ": no such file"));
  const Outcome empty = Call({"generate", Path("checkpoints"), "--prompt", ""});
  EXPECT_EQ(empty.status, 2);
  EXPECT_THAT(empty.err, HasSubstr("a prompt is empty"));
}

TEST_F(GeneratorTest, AutoSplitsTheWeightsAsTheTrainingDid) {
  const std::string folder = StrCat("checkpoint.path=\"", Path("checkpoints"), "\"");
  ASSERT_EQ(Call({"run", Path("job.toml"), "--set", folder, "--strategy", "dp=2,tp=2,subbatches=2"})
                .status,
            0);
  const auto generate = [&](const std::string& strategy) {
    return Call({"generate", Path("checkpoints"), "--prompt", "the ", "--bytes", "12",
                 "--temperature", "0", "--strategy", strategy, "--json"});
  };
  const Outcome one = generate("dp=1");
  const Outcome chosen = generate("auto");
  ASSERT_EQ(chosen.status, 0) << chosen.err;
  EXPECT_EQ(nlohmann::json::parse(chosen.out)["text"], nlohmann::json::parse(one.out)["text"]);
  EXPECT_THAT(chosen.err, HasSubstr("note: --strategy auto: dp=1,tp=2,pp=1: the weights are split "
                                    "as in the training under dp=2,tp=2,pp=1,subbatches=2\n"));
  EXPECT_THAT(generate("tp").err, HasSubstr("--strategy "));
}

TEST_F(GeneratorTest, AutoSplitsTheExpertsAsTheTrainingDid) {
  const std::string folder = StrCat("checkpoint.path=\"", Path("checkpoints"), "\"");
  const Outcome trained =
      Call({"run", Path("job.toml"), "--set", folder, "--set", "model.name=\"moe\"", "--set",
            "model.experts=4", "--strategy", "dp=4,ep=2"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const auto generate = [&](const std::string& strategy) {
    return Call({"generate", Path("checkpoints"), "--prompt", "the ", "--bytes", "12", "--seed",
                 "5", "--strategy", strategy, "--json"});
  };
  const Outcome one = generate("dp=1");
  const Outcome chosen = generate("auto");
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(chosen.status, 0) << chosen.err;
  EXPECT_EQ(nlohmann::json::parse(chosen.out)["text"], nlohmann::json::parse(one.out)["text"]);
  EXPECT_THAT(chosen.err, HasSubstr("note: --strategy auto: dp=2,tp=1,pp=1,ep=2: the weights are "
                                    "split as in the training under dp=4,tp=1,pp=1,ep=2\n"));
}

TEST_F(GeneratorTest, TheCommandNamesAModelThatItCannotRun) {
  actors::CheckpointInfo info;
  info.settings = {{"model.file", "net.pst"}, {"train.dtype", "f32"}};
  const std::string path = Path("model.safetensors");
  ASSERT_TRUE(actors::WriteSafetensors(path, {}, actors::ToMetadata(info)).ok());
  const Outcome outcome = Call({"generate", path, "--prompt", "a"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr(StrCat(path, ": is of the model in the graph file net.pst; ")));
}

}  // namespace
}  // namespace penstock::cli
