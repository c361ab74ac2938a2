// What `penstock plan` predicts, for which cluster, and how it explains that. Everything runs in
// this process, on jobs that take a moment.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "tests/support/cluster_text.h"
#include "tests/support/command_line_fixture.h"

namespace penstock::cli {
namespace {

using testing::ClusterText;
using testing::CommandLineFixture;
using Outcome = CommandLineFixture::Outcome;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanPredictionTest : public CommandLineFixture {};

TEST_F(PlanPredictionTest, AClusterFileGoesOverTheJobs) {
  const std::string cluster = Write("cluster.toml", "[cluster]\ndevices = 4\n");
  Outcome outcome = Call({"plan", Path("job.toml"), "--cluster", cluster, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["devices"], 4);
  outcome = Call(
      {"plan", Path("job.toml"), "--cluster", cluster, "--set", "cluster.devices=2", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["devices"], 2);

  Write("cluster.toml", "[train]\nsteps = 4\n");
  outcome = Call({"plan", Path("job.toml"), "--cluster", cluster});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("cluster.toml:1:2: unexpected section 'train'; this file "
                                     "holds [cluster] alone"));
}

// What --cluster names is told apart by its content: a preset, a description, or keys of a job.
TEST_F(PlanPredictionTest, AClusterDecidesThePrediction) {
  const std::string description = ClusterText({.levels = {{"host", 2, 1e6}}});
  const auto step = [&](std::vector<std::string> more) {
    std::vector<std::string> call = {"plan", Path("job.toml"), "--strategy", "dp=2", "--json"};
    call.insert(call.end(), more.begin(), more.end());
    const Outcome outcome = Call(call);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0
               ? nlohmann::json::parse(outcome.out)["predicted_step_time_s"].get<double>()
               : 0.0;
  };
  const double here = step({});
  const double preset = step({"--cluster", "dgx-a100:1"});
  const double slow = step({"--cluster", Write("slow.toml", description)});
  EXPECT_GT(here, 0);
  EXPECT_LT(preset, here);
  EXPECT_GT(slow, here);
  // The same from the job, whose folder a path counts from.
  const std::string job = Write("slow_job.toml", Job() + "[cluster]\nfile = \"slow.toml\"\n");
  const Outcome by_key = Call({"plan", job, "--strategy", "dp=2", "--json"});
  ASSERT_EQ(by_key.status, 0) << by_key.err;
  EXPECT_EQ(nlohmann::json::parse(by_key.out)["predicted_step_time_s"], slow);

  EXPECT_THAT(Call({"plan", job, "--strategy", "dp=4"}).err,
              HasSubstr("slow_job.toml:19:8: the cluster has 2 devices, and the job needs 4"));
  EXPECT_THAT(Call({"plan", job, "--cluster", "dgx-a10:2"}).err,
              HasSubstr("--cluster dgx-a10:2: unknown cluster preset 'dgx-a10'"));
  Write("slow.toml", description + "uplinks = 0.5\n");
  EXPECT_THAT(Call({"plan", job}).err, HasSubstr("slow.toml:12:11: "));
}

// Devices that share cores are predicted to take turns; slow links between hosts take their time.
TEST_F(PlanPredictionTest, ThePredictionKnowsHostsAndCores) {
  const auto step = [&](std::string strategy, std::vector<std::string> sets) {
    std::vector<std::string> call = {"plan", Path("job.toml"), "--strategy", strategy, "--json"};
    for (const std::string& set : sets) call.insert(call.end(), {"--set", set});
    const Outcome outcome = Call(call);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    if (outcome.status != 0) return 0.0;
    return nlohmann::json::parse(outcome.out)["predicted_step_time_s"].get<double>();
  };
  EXPECT_GT(step("dp=2", {"cluster.hosts=2", "cluster.link_gbit_per_s=0.001"}),
            2 * step("dp=2", {}));
  // As many threads as there are cores, at least: one device at a time.
  EXPECT_GT(step("dp=2", {"cluster.threads=1024"}), 0.95 * step("dp=1", {"cluster.threads=1024"}));
}

// A model so small that links take longer than one device computes, and one that is not.
TEST_F(PlanPredictionTest, ExplanationsSayWhereFewerDevicesWouldDo) {
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> call = {"plan", Path("job.toml"), "--strategy", "auto", "--explain"};
    call.insert(call.end(), more.begin(), more.end());
    const Outcome outcome = Call(call);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  const std::vector<std::string> small = {"--cluster", "cpu-ethernet:2"};
  EXPECT_THAT(plan(small), HasSubstr("fewer devices: 1 device is as fast: dp=1,tp=1,pp=1, "));
  std::vector<std::string> large = small;
  for (const char* const key : {"model.width=512", "model.context=128", "train.batch=64"}) {
    large.insert(large.end(), {"--set", key});
  }
  EXPECT_THAT(plan(large), ::testing::ContainsRegex(
                               "fewer devices: 2 devices would take [12]\\.[0-9]+ times as long"));
  large.push_back("--json");
  const nlohmann::json json = nlohmann::json::parse(plan(large));
  ASSERT_EQ(json["fewer_devices"].size(), 1u);
  EXPECT_EQ(json["fewer_devices"][0]["devices"], 2);
  EXPECT_EQ(json["fewer_devices"][0]["as_fast"], false);
  EXPECT_GT(json["fewer_devices"][0]["step_s"], json["predicted_step_time_s"]);
}

TEST_F(PlanPredictionTest, AutoSaysWhereItDoesNotKnowTheMachine) {
  const auto errors = [&](std::vector<std::string> more) {
    std::vector<std::string> call = {"plan", Path("job.toml")};
    call.insert(call.end(), more.begin(), more.end());
    return Call(call).err;
  };
  const std::string note = "by built-in figures of a core; `penstock profile -o here.toml`";
  EXPECT_THAT(errors({"--strategy", "auto", "--devices", "2"}), HasSubstr(note));
  EXPECT_THAT(errors({"--strategy", "auto", "--cluster", "cpu-ethernet:2"}), Not(HasSubstr(note)));
  EXPECT_THAT(errors({"--strategy", "dp=2"}), Not(HasSubstr(note)));
}

TEST_F(PlanPredictionTest, AutoChoosesForTheClusterAndExplains) {
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> call = {"plan", Path("job.toml"), "--strategy", "auto"};
    call.insert(call.end(), more.begin(), more.end());
    return Call(call);
  };
  // All devices of the cluster, without a key for their number.
  const Outcome outcome = plan({"--cluster", "cpu-ethernet:2", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["devices"], 4);
  EXPECT_EQ(json["cluster"], "cpu-ethernet:2");
  const nlohmann::json& step = json["prediction"];
  EXPECT_EQ(step["step_s"], json["predicted_step_time_s"]);
  EXPECT_NEAR(step["step_s"].get<double>(),
              step["compute_s"].get<double>() + step["exposed_communication_s"].get<double>() +
                  step["bubble_s"].get<double>(),
              1e-6 * step["step_s"].get<double>());
  EXPECT_EQ(step["stages"].size(), json["stages"]);
  EXPECT_GT(step["stages"][0]["memory"]["parameters_bytes"], 0);
  EXPECT_GT(json["search"]["estimated"], 0);
  ASSERT_FALSE(json["runners_up"].empty());
  EXPECT_GE(json["runners_up"][0]["step_s"].get<double>(), 0.98 * step["step_s"].get<double>());
  EXPECT_FALSE(json["runners_up"][0]["reason"].get<std::string>().empty());
  EXPECT_FALSE(step["stages"][0]["devices"].get<std::string>().empty());
  // What would make them win takes more estimates: it is only said where it is asked for.
  EXPECT_FALSE(json["runners_up"][0].contains("wins_if"));
  const nlohmann::json explained =
      nlohmann::json::parse(plan({"--cluster", "cpu-ethernet:2", "--json", "--explain"}).out);
  for (const nlohmann::json& runner_up : explained["runners_up"]) {
    EXPECT_FALSE(runner_up["wins_if"].get<std::string>().empty());
  }
  // A schedule that the job names is not chosen.
  const nlohmann::json named = nlohmann::json::parse(
      plan({"--cluster", "cpu-ethernet:2", "--policy", "gpipe", "--json"}).out);
  EXPECT_EQ(named["schedule"], "gpipe");
  EXPECT_TRUE(named["other_schedules"].empty());

  const Outcome text = plan({"--cluster", "cpu-ethernet:2", "--explain"});
  ASSERT_EQ(text.status, 0) << text.err;
  for (const char* part : {"shardings given", "axes:\n", "predicted step, of the compiled plan:\n",
                           "exposed communication", "bubble", "stages (",
                           "limit: ", "runners-up, as the search estimates them ", "(chosen)"}) {
    EXPECT_THAT(text.out, HasSubstr(part));
  }
  // Layers that are split alike are one line.
  EXPECT_THAT(Call({"plan", Path("job.toml"), "--strategy", "tp=2", "--explain"}).out,
              HasSubstr("  h*.mlp.w1 : f64[16, 64] @[_, tp] (2 of them)\n"));
  // A strategy that is given has no runners-up.
  const Outcome given = Call({"plan", Path("job.toml"), "--strategy", "dp=2", "--explain"});
  EXPECT_THAT(given.out, HasSubstr("predicted step, of the compiled plan:\n"));
  EXPECT_THAT(given.out, Not(HasSubstr("runners-up")));
}

TEST_F(PlanPredictionTest, WhatDoesNotFitIntoTheClusterSaysWhatWould) {
  Write("tiny.toml", ClusterText({.memory_bytes = 20'000, .levels = {{"host", 2}}}));
  const std::string job = Write("tiny_job.toml", Job() + "[cluster]\nfile = \"tiny.toml\"\n");
  const Outcome outcome = Call({"plan", job});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("tiny_job.toml:19:8: no strategy for 2 devices fits into "
                                     "memory; "));
  EXPECT_THAT(outcome.err, HasSubstr("times as many devices"));
  // One that the user insists on is planned, with a note.
  const Outcome given = Call({"plan", job, "--strategy", "dp=2"});
  EXPECT_EQ(given.status, 0) << given.err;
  EXPECT_THAT(given.err, HasSubstr("note: predicted not to fit into memory: a device needs "));
  const Outcome simulated = Call({"simulate", job, "--strategy", "dp=2"});
  EXPECT_EQ(simulated.status, 0) << simulated.err;
  EXPECT_THAT(simulated.err, HasSubstr("note: the plan does not fit into memory: device 0 needs "));
}

// The copies of states that go into checkpoints need room, too.
TEST_F(PlanPredictionTest, TheSearchLeavesRoomForCheckpoints) {
  const auto least_memory = [this](const std::string& checkpoints) {
    for (int64_t memory = 300'000; memory < 10'000'000; memory += memory / 10) {
      Write("small.toml", ClusterText({.memory_bytes = memory, .levels = {{"host", 1}}}));
      const std::string job = Write(
          "small_job.toml", StrCat(Job(), "[cluster]\nfile = ", "\"small.toml\"\n", checkpoints));
      const Outcome outcome = Call({"plan", job, "--json"});
      if (outcome.status == 0) return std::pair(memory, nlohmann::json::parse(outcome.out));
      EXPECT_THAT(outcome.err, HasSubstr("fits into memory"));
    }
    return std::pair(int64_t{0}, nlohmann::json());
  };
  const auto [without, plan] = least_memory("");
  const auto [with, checked] = least_memory("[checkpoint]\npath = \"checkpoints\"\n");
  EXPECT_EQ(plan["checkpoint_copy_bytes"], 0);
  const auto copied = checked["checkpoint_copy_bytes"].get<double>();
  EXPECT_GT(copied, 0);
  EXPECT_NEAR(static_cast<double>(with - without), copied, 0.1 * static_cast<double>(with));
}

// Between the memory that a training needs and that it needs with checkpoints: a strategy that the
// user insists on has a note.
TEST_F(PlanPredictionTest, ThePredictionCountsTheCopyForCheckpoints) {
  const auto note = [this](int64_t memory, const std::string& checkpoints) {
    Write("small.toml", ClusterText({.memory_bytes = memory, .levels = {{"host", 1}}}));
    const std::string job =
        Write("small_job.toml", StrCat(Job(), "[cluster]\nfile = \"small.toml\"\n", checkpoints));
    const Outcome outcome = Call({"plan", job, "--strategy", "dp=1"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.err;
  };
  const std::string does_not_fit = "note: predicted not to fit into memory";
  int64_t memory = 300'000;
  while (memory < 10'000'000 && note(memory, "").find(does_not_fit) != std::string::npos) {
    memory += memory / 20;
  }
  EXPECT_THAT(note(memory, ""), Not(HasSubstr(does_not_fit)));
  EXPECT_THAT(note(memory, "[checkpoint]\npath = \"checkpoints\"\n"), HasSubstr(does_not_fit));
}

}  // namespace
}  // namespace penstock::cli
