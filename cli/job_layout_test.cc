// How many chunks the stages of a job have, and how they lie, if the schedule `auto` chooses.

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "tests/support/command_line_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class JobLayoutTest : public testing::CommandLineFixture {
 protected:
  // A model whose stages compute for long in comparison to what passes between them.
  static std::vector<std::string> Options(const std::string& policy, int microbatches) {
    return {"--policy",  policy,
            "--cluster", "hgx-h100:1",
            "--set",     "model.layers=16",
            "--set",     "model.width=256",
            "--set",     "model.context=128",
            "--set",     "train.dtype=\"f32\"",
            "--set",     StrCat("parallel.microbatches=", microbatches)};
  }

  nlohmann::json PlanJson(std::vector<std::string> more) const {
    std::vector<std::string> call = {"plan", Path("job.toml"), "--json"};
    call.insert(call.end(), more.begin(), more.end());
    const Outcome outcome = Call(call);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
  }

  nlohmann::json PlanJson(const std::string& policy, int microbatches,
                          const std::string& strategy = "pp=4") const {
    std::vector<std::string> options = Options(policy, microbatches);
    options.insert(options.end(), {"--strategy", strategy});
    return PlanJson(options);
  }
};

TEST_F(JobLayoutTest, AutoIsNoSlowerThanANamedPolicyOfAnyLayout) {
  for (const int microbatches : {4, 8}) {
    const nlohmann::json best = PlanJson("auto", microbatches);
    const double step_s = best["predicted_step_time_s"];
    for (const std::string policy :
         {"gpipe", "1f1b", "eager-1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-1p",
          "zb-2p", "zb-v", "v-half", "v-min", "dualpipev"}) {
      const double named_s = PlanJson(policy, microbatches)["predicted_step_time_s"];
      // Layouts whose steps are within a thousandth of each other tie.
      EXPECT_LE(step_s, 1.0011 * named_s) << policy << ", " << microbatches << " micro-batches";
    }
  }
}

// With few micro-batches, the bubble of one chunk a stage is long.
TEST_F(JobLayoutTest, AutoTakesTwoChunksWhereTheyAreFaster) {
  const nlohmann::json best = PlanJson("auto", 4);
  EXPECT_EQ(best["strategy"], "dp=1,tp=1,pp=4,vpp=2");
  const double one_chunk_s = PlanJson("zb-h1", 4)["predicted_step_time_s"];
  EXPECT_LT(best["predicted_step_time_s"].get<double>(), 0.98 * one_chunk_s);

  std::vector<std::string> call = {"plan", Path("job.toml"), "--strategy", "pp=4"};
  for (const std::string& option : Options("auto", 4)) call.push_back(option);
  const Outcome outcome = Call(call);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AnyOf(HasSubstr("2 chunks a stage (vee), the best of 3 layouts"),
                                 HasSubstr("2 chunks a stage (loop), the best of 3 layouts")));
}

TEST_F(JobLayoutTest, WhatIsStatedIsKept) {
  EXPECT_EQ(PlanJson("auto", 4, "pp=4,vpp=3")["strategy"], "dp=1,tp=1,pp=4,vpp=3");
  std::vector<std::string> options = Options("auto", 4);
  options.insert(options.end(), {"--strategy", "pp=4", "--set", "parallel.chunks=1"});
  EXPECT_EQ(PlanJson(options)["strategy"], "dp=1,tp=1,pp=4");
  options.back() = "parallel.chunks=4";
  EXPECT_EQ(PlanJson(options)["strategy"], "dp=1,tp=1,pp=4,vpp=4");
  // Only auto chooses.
  EXPECT_EQ(PlanJson("gpipe", 4)["strategy"], "dp=1,tp=1,pp=4");
  EXPECT_EQ(PlanJson("auto", 4, "dp=2")["strategy"], "dp=2,tp=1,pp=1");
}

// The search for a strategy tries the placements too.
TEST_F(JobLayoutTest, TheStrategyAutoChoosesALayoutForAuto) {
  std::vector<std::string> options = Options("auto", 4);
  options.insert(options.end(), {"--strategy", "auto", "--devices", "4", "--set",
                                 "parallel.chunks=2", "--explain"});
  const nlohmann::json json = PlanJson(options);
  EXPECT_THAT(json["strategy"].get<std::string>(), HasSubstr("dp="));
}

// A plan may have been compiled for another machine, which has taken another layout.
TEST_F(JobLayoutTest, APlanWithAnotherNumberOfChunksIsThatOfTheJob) {
  std::vector<std::string> call = {"plan",       Path("job.toml"),
                                   "-o",         Path("p.plan"),
                                   "--strategy", "pp=2",
                                   "--set",      "model.layers=4",
                                   "--set",      "parallel.microbatches=4",
                                   "--policy",   "auto",
                                   "--set",      "parallel.chunks=2"};
  ASSERT_EQ(Call(call).status, 0);
  std::vector<std::string> run = {"run",        Path("job.toml"),
                                  "--plan",     Path("p.plan"),
                                  "--strategy", "pp=2",
                                  "--set",      "model.layers=4",
                                  "--set",      "parallel.microbatches=4",
                                  "--policy",   "auto"};
  const Outcome open = Call(run);
  EXPECT_EQ(open.status, 0) << open.err;
  EXPECT_THAT(open.out + open.err, HasSubstr("vpp=2"));
  run.insert(run.end(), {"--set", "parallel.chunks=1"});
  EXPECT_THAT(Call(run).err, HasSubstr("was compiled with parallel.strategy"));
}

TEST_F(JobLayoutTest, TrainsToTheLossesOfOneDevice) {
  const auto losses = [&](const std::vector<std::string>& more) {
    std::vector<double> all;
    std::vector<std::string> options = {"--set", "model.layers=8", "--set",
                                        "parallel.microbatches=4"};
    options.insert(options.end(), more.begin(), more.end());
    for (const nlohmann::json& line : RunLines(options)) {
      if (line.contains("loss")) all.push_back(line["loss"]);
    }
    return all;
  };
  const std::vector<double> alone = losses({});
  ASSERT_EQ(alone.size(), 3u);
  for (const std::string chunks : {"2", "3"}) {
    const std::vector<double> piped = losses(
        {"--strategy", "pp=2", "--policy", "auto", "--set", StrCat("parallel.chunks=", chunks)});
    ASSERT_EQ(piped.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_NEAR(piped[i], alone[i], 1e-8 * alone[i]) << chunks << " chunks, step " << i + 1;
    }
  }
}

}  // namespace
}  // namespace penstock::cli
