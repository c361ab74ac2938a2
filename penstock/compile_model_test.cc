#include "penstock/compile_model.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "penstock/penstock.h"
#include "planner/cluster/presets.h"
#include "planner/search/machine.h"
#include "planner/strategy/strategy.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 8;
constexpr graph::ModelConfig kConfig = {
    .layers = 2, .width = 16, .heads = 2, .context = 8, .dropout = 0.2, .dtype = DType::kF64};

class CompileModelTest : public ::testing::Test {
 protected:
  // The training step of the built-in GPT.
  graph::Graph Step() const {
    auto forward =
        graph::BuildModelGraph(registries_.ops, Model(), kConfig, graph::ModelUse::kTrain, kBatch);
    EXPECT_TRUE(forward.ok()) << forward.status();
    auto step = graph::BuildTrainingGraph(registries_.ops, *std::move(forward), {});
    EXPECT_TRUE(step.ok()) << step.status();
    return *std::move(step);
  }
  const graph::Model& Model() const { return *registries_.models.FindModel("gpt"); }
  ModelOptions Options(const std::string& strategy) const {
    return {.strategy = strategy, .splits = Model().tensor_splits};
  }

  std::unique_ptr<actors::Session> Start(const std::string& strategy,
                                         actors::SessionOptions options = {}) const {
    auto plan = CompileModel(registries_, Step(), Options(strategy));
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return nullptr;
    options.seed = 1;
    auto session = StartSession(registries_, *std::move(plan), options);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  // The losses of the steps [begin, end), which are fed by their numbers.
  static std::vector<double> Run(actors::Session& session, int64_t begin, int64_t end) {
    std::vector<double> losses;
    for (int64_t step = begin; step < end; ++step) {
      Tensor tokens({DType::kI32, {kBatch, kConfig.context}});
      for (int64_t i = 0; i < tokens.num_elements(); ++i) {
        tokens.As<int32_t>()[i] = static_cast<int32_t>((7 * i + 3 * step) % 50);
      }
      const auto result = session.Run({{"tokens", tokens}, {"labels", tokens}});
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) return losses;
      losses.push_back(*result->Find("loss")->As<double>());
    }
    return losses;
  }

  std::string ErrorOf(const ModelOptions& options) const {
    const auto plan = CompileModel(registries_, Step(), options);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(plan.status().message());
  }

  const Registries registries_ = BuiltinRegistries();
};

TEST_F(CompileModelTest, StrategiesGiveTheSameLosses) {
  const std::vector<double> one = Run(*Start(""), 0, 3);
  ASSERT_EQ(one.size(), 3u);
  for (const char* strategy : {"dp=2,tp=2", "pp=2", "dp=2,zero=2", "pp=2,vpp=2"}) {
    const auto session = Start(strategy);
    ASSERT_NE(session, nullptr);
    const std::vector<double> losses = Run(*session, 0, 3);
    ASSERT_EQ(losses.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(losses[i], one[i], 1e-9) << strategy << ", step " << i;
    }
  }
}

TEST_F(CompileModelTest, OptionsReachThePlan) {
  ModelOptions options = Options("tp=2,pp=2");
  options.microbatches = 4;
  options.threads_per_device = 2;
  auto plan = CompileModel(registries_, Step(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->strategy, "dp=1,tp=2,pp=2");
  EXPECT_EQ(plan->devices.size(), 4u);
  EXPECT_EQ(plan->num_microbatches, 4u);
  EXPECT_EQ(plan->threads_per_device, 2u);
  // A policy with two chunks a group has two virtual stages in each.
  ModelOptions chunks = Options("pp=2");
  chunks.policy = "zb-v";
  plan = CompileModel(registries_, Step(), chunks);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->strategy, HasSubstr("vpp=2"));
  // Not one whose chunks are stages of both directions.
  chunks.policy = "chimera";
  chunks.microbatches = 4;
  plan = CompileModel(registries_, Step(), chunks);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->strategy, "dp=1,tp=1,pp=2");
  EXPECT_EQ(plan->devices.size(), 2u);
  chunks.strategy = "auto";
  EXPECT_THAT(std::string(CompileModel(registries_, Step(), chunks).status().message()),
              HasSubstr("which the search for a strategy does not know"));
}

TEST_F(CompileModelTest, AutoSearchesAndTrainsAlike) {
  const std::vector<double> one = Run(*Start(""), 0, 3);
  ModelOptions options = Options("auto");
  options.devices = 4;
  const auto check = [&](const std::string& what) {
    SCOPED_TRACE(what);
    auto plan = CompileModel(registries_, Step(), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->devices.size(), 4u);
    const auto strategy = planner::ParseStrategy(plan->strategy);
    ASSERT_TRUE(strategy.ok() && strategy->has_value()) << plan->strategy;
    EXPECT_EQ((*strategy)->num_devices(), 4);
    EXPECT_GT(plan->predicted_step_s, 0);
    actors::SessionOptions session_options;
    session_options.seed = 1;
    const auto session = StartSession(registries_, *std::move(plan), session_options);
    ASSERT_TRUE(session.ok()) << session.status();
    const std::vector<double> losses = Run(**session, 0, 3);
    ASSERT_EQ(losses.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses[i], one[i], 1e-9) << i;
  };
  check("this host");
  options.splits.clear();
  check("without splits");
  options = {.strategy = "dp=2,tp=2,splits=cost"};
  check("splits by cost");
}

TEST_F(CompileModelTest, AutoChoosesForTheMachine) {
  const auto cluster = planner::FindClusterPreset("dgx-a100:1");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const planner::Machine machine = {*cluster};
  ModelOptions options = Options("auto");
  options.devices = 8;
  options.machine = &machine;
  auto plan = CompileModel(registries_, Step(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->devices.size(), 8u);
  const double there = plan->predicted_step_s;
  options.devices = 9;
  EXPECT_THAT(ErrorOf(options), HasSubstr("the machine has 8 devices, and the strategy needs 9"));
  options.devices = 8;
  options.machine = nullptr;
  plan = CompileModel(registries_, Step(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(plan->predicted_step_s, there);
  options.devices = 2;
  options.microbatches = 2;
  options.policy = "gpipe";
  plan = CompileModel(registries_, Step(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_microbatches, 2u);
}

TEST_F(CompileModelTest, ErrorsNameWhatIsWrong) {
  EXPECT_THAT(ErrorOf(Options("dp=3")), HasSubstr("dp = 3 does not divide batch = 8"));
  EXPECT_THAT(ErrorOf(Options("dq=2")), HasSubstr("dq"));
  ModelOptions unknown = Options("auto");
  unknown.policy = "nobody";
  EXPECT_THAT(ErrorOf(unknown), HasSubstr("unknown policy 'nobody'"));
  auto forward =
      graph::BuildModelGraph(registries_.ops, Model(), kConfig, graph::ModelUse::kTrain, kBatch);
  ASSERT_TRUE(forward.ok());
  EXPECT_THAT(CompileModel(registries_, *forward, Options("auto")).status().ToString(),
              HasSubstr("choosing by cost is for training steps"));
  EXPECT_THAT(ErrorOf({.threads_per_device = 0}), HasSubstr("at least 1 thread"));
  EXPECT_THAT(ErrorOf({.policy = "nobody"}), HasSubstr("nobody"));
}

// A session that starts from the states of another and from its step draws the dropout that the
// other would have drawn.
TEST_F(CompileModelTest, FirstStepContinuesARunBitForBit) {
  const auto whole = Start("dp=2,tp=2");
  ASSERT_NE(whole, nullptr);
  Run(*whole, 0, 3);
  auto kept = whole->KeepStates(actors::StateSelection::kAll);
  ASSERT_TRUE(kept.ok()) << kept.status();
  const std::vector<double> expected = Run(*whole, 3, 6);
  actors::SessionOptions options;
  options.states = *kept;
  options.first_step = 3;
  const auto resumed = Start("dp=2,tp=2", options);
  ASSERT_NE(resumed, nullptr);
  EXPECT_EQ(Run(*resumed, 3, 6), expected);
  // Without the step, it would begin with the dropout of step 0.
  options.first_step = 0;
  const auto repeated = Start("dp=2,tp=2", options);
  ASSERT_NE(repeated, nullptr);
  Tensor tokens({DType::kI32, {kBatch, kConfig.context}});
  for (int64_t i = 0; i < tokens.num_elements(); ++i) {
    tokens.As<int32_t>()[i] = static_cast<int32_t>((7 * i + 9) % 50);
  }
  const auto result = repeated->Run({{"tokens", tokens}, {"labels", tokens}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NE(*result->Find("loss")->As<double>(), expected[0]);
}

}  // namespace
}  // namespace penstock
