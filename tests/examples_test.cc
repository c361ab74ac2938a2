// The examples without a test beside them do what they say, and the command loads their plug-in.

#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/program.h"
#include "tests/support/run_example.h"
#include "tests/support/temp_folder.h"

namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;

TEST(DataSourceExampleTest, FindsTheWeightsOfItsSource) {
  const ExampleRun run = RunExample("data_source");
  ASSERT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(NumbersAfter(run.output, "largest difference"), AllOf(SizeIs(1), Each(Lt(0.05))))
      << run.output;
  EXPECT_EQ(RunExample("data_source", "none").exit_status, 2);
}

TEST(ActorExampleTest, ExchangesTensorsWithItsSession) {
  const ExampleRun run = RunExample("actor");
  ASSERT_EQ(run.exit_status, 0) << run.output;
  const std::vector<double> losses = NumbersAfter(run.output, "loss");
  ASSERT_EQ(losses.size(), 10u) << run.output;
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_THAT(run.output, HasSubstr("norm of w "));
}

TEST(MlpExampleTest, ResumesWithTheSameLosses) {
  const TempFolder folder;
  for (const char* strategy : {"dp=1", "dp=2,tp=2"}) {
    const ExampleRun run =
        RunExample("mlp", StrCat(strategy, " ", folder.Path(StrCat("checkpoints-", strategy))));
    ASSERT_EQ(run.exit_status, 0) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr("resumed at step 21"),
                                  HasSubstr("the same losses as without interruption")));
    const std::vector<double> losses = NumbersAfter(run.output, "loss");
    EXPECT_LT(losses.back(), 0.5 * losses.front()) << run.output;
  }
}

TEST(GptExampleTest, LearnsUnderAnyStrategy) {
  const std::string text = PENSTOCK_SOURCE_DIR "/LICENSE";
  std::vector<double> expected;
  for (const char* strategy : {"dp=1", "dp=2,tp=2"}) {
    const ExampleRun run = RunExample("gpt", StrCat(text, " ", strategy, " 30"));
    ASSERT_EQ(run.exit_status, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr("sample: "));
    const std::vector<double> losses = NumbersAfter(run.output, "loss");
    ASSERT_EQ(losses.size(), 4u) << run.output;
    EXPECT_NEAR(losses.front(), std::log(256.0), 0.2);
    EXPECT_LT(losses.back(), 3.7);  // the bytes by themselves have about 3
    if (expected.empty()) expected = losses;
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-3);
  }
  EXPECT_EQ(RunExample("gpt", "/nowhere").exit_status, 1);
}

// The plug-in of examples/custom_operator in the command.
class PluginCommandTest : public ::testing::Test {
 protected:
  static constexpr char kPlugin[] = PENSTOCK_EXAMPLES "/example_squared_distance.so";

  // What a call of the command prints; fails the test unless it ends with `status`.
  static std::string Call(std::vector<std::string> arguments, int status = 0) {
    arguments.insert(arguments.begin(), PENSTOCK_COMMAND);
    Program program(arguments);
    EXPECT_EQ(program.AwaitEnd(), status) << program.output();
    return program.output();
  }

  static std::vector<double> LossesOf(std::vector<std::string> options) {
    std::vector<std::string> arguments = {"run",
                                          PENSTOCK_SOURCE_DIR
                                          "/examples/custom_operator/prototypes.toml",
                                          "--plugin",
                                          kPlugin,
                                          "--json",
                                          "--set",
                                          "train.steps=4",
                                          "--set",
                                          "train.dtype=\"f64\"",
                                          "--set",
                                          "train.validation_sequences=0",
                                          "--set",
                                          "sample.bytes=0"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return NumbersAfter(Call(arguments), "\"loss\":");
  }
};

TEST_F(PluginCommandTest, OperatorsAndModelsAreListed) {
  EXPECT_THAT(Call({"list", "ops", "--plugin", kPlugin}), HasSubstr("\nsquared_distance\n"));
  EXPECT_THAT(Call({"list", "models", "--plugin", kPlugin}), HasSubstr("prototypes"));
}

TEST_F(PluginCommandTest, LaunchHandsThemToAllProcesses) {
  const TempFolder folder;
  const std::vector<std::string> launch = {"launch", "--launcher", "local", "--log-dir",
                                           folder.Path("logs")};
  const std::vector<std::string> run = {"--",
                                        PENSTOCK_SOURCE_DIR
                                        "/examples/custom_operator/prototypes.toml",
                                        "--json",
                                        "--procs",
                                        "2",
                                        "--strategy",
                                        "dp=2",
                                        "--set",
                                        "train.steps=2"};
  const std::vector<std::string> plugin = {"--plugin", kPlugin};
  const auto join = [](std::vector<std::string> words, const std::vector<std::string>& others) {
    words.insert(words.end(), others.begin(), others.end());
    return words;
  };
  EXPECT_THAT(NumbersAfter(Call(join(join(launch, plugin), run)), "\"loss\":"), SizeIs(2));
  EXPECT_THAT(NumbersAfter(Call(join(join(launch, run), plugin)), "\"loss\":"), SizeIs(2));
  EXPECT_THAT(Call(join(join(launch, run), {"--plugin", "nowhere.so"}), 2),
              HasSubstr("--plugin nowhere.so: the plug-in cannot be loaded: "));
}

TEST_F(PluginCommandTest, AnyPlanAndPlacementGivesTheSameLosses) {
  const std::vector<double> one = LossesOf({"--strategy", "dp=1"});
  ASSERT_EQ(one.size(), 4u);
  EXPECT_LT(one.back(), one.front());
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--strategy", "dp=2,tp=2"},
           {"--strategy", "tp=4", "--set", "parallel.microbatches=1"},
           {"--strategy", "pp=2,dp=2", "--procs", "2"}}) {
    const std::vector<double> losses = LossesOf(options);
    ASSERT_EQ(losses.size(), one.size()) << options[1];
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses[i], one[i], 1e-9) << options[1];
  }
}

// Each device has a process of its own, so one process decides for those of a stage.
TEST_F(PluginCommandTest, APolicyOfALibraryDecidesWhileAPlanRuns) {
  const std::string policy = PENSTOCK_EXAMPLES "/example_gradients_first.so";
  const std::vector<std::string> pipeline = {
      "--strategy", "pp=2,tp=2", "--set", "parallel.microbatches=4", "--policy", policy};
  const auto with = [&pipeline](std::vector<std::string> options) {
    options.insert(options.end(), pipeline.begin(), pipeline.end());
    return options;
  };
  const std::vector<double> one = LossesOf({"--strategy", "dp=1"});
  for (const char* processes : {"1", "4"}) {
    const std::vector<double> losses = LossesOf(with({"--procs", processes}));
    ASSERT_EQ(losses.size(), one.size()) << processes;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses[i], one[i], 1e-9) << processes;
  }
  const std::string job = PENSTOCK_SOURCE_DIR "/examples/custom_operator/prototypes.toml";
  // One that throws when it is asked shows that it is asked.
  setenv("PENSTOCK_POLICY_FAULT", "next throws", /*replace=*/1);
  const std::string failed =
      Call({"run", job, "--plugin", kPlugin, "--strategy", "pp=2", "--procs", "2", "--set",
            "parallel.microbatches=2", "--policy", PENSTOCK_FAULTY_POLICY},
           1);
  unsetenv("PENSTOCK_POLICY_FAULT");
  EXPECT_THAT(failed, ContainsRegex("policy '.*libfaulty_policy.so' threw at stage [01], step 1: "
                                    "oops"));
  EXPECT_THAT(Call(with({"simulate", job, "--plugin", kPlugin})), HasSubstr("pp=2"));
  EXPECT_THAT(Call({"list", "policies", "--plugin", policy}), HasSubstr(policy));
}

TEST_F(PluginCommandTest, EvalRunsTheOperator) {
  const TempFolder folder;
  const std::string file = folder.Path("distances.pst");
  std::ofstream(file) << "mesh m = [d=2]\ngraph distances {\n"
                         "  %x = input : f64[8, 6] @[_, d]\n  %c = parameter : f64[3, 6]\n"
                         "  %y = squared_distance(%x, %c) : f64[8, 3]\n  return %y\n}\n";
  EXPECT_THAT(Call({"eval", file, "--plugin", kPlugin}), HasSubstr("f64[8, 3]"));
  EXPECT_THAT(Call({"eval", file}, 2), HasSubstr("squared_distance"));
}

TEST_F(PluginCommandTest, WhatIsWrongWithALibraryIsSaid) {
  EXPECT_THAT(Call({"list", "ops", "--plugin", "nowhere.so"}, 2),
              HasSubstr("--plugin nowhere.so: the plug-in cannot be loaded: "));
  EXPECT_THAT(Call({"list", "ops", "--plugin", kPlugin, "--plugin", kPlugin}, 2),
              HasSubstr("squared_distance"));
}

}  // namespace
}  // namespace penstock::testing
