#include "cli/job_status_text.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace penstock::cli {
namespace {

using actors::JobStatus;
using ::testing::HasSubstr;
using ::testing::Not;
using State = actors::DeviceSnapshot::State;

// Device 0 runs, 1 waits for it, 2 for 1; device 3 is on a process that does not answer.
JobStatus FourDevices() {
  JobStatus status;
  status.id = "abc";
  status.name = "gpt";
  status.strategy = "pp=4";
  status.host = "host-a";
  status.pid = 4711;
  status.activity = "training";
  status.steps_done = 7;
  status.steps = 50;
  status.age_s = 400;
  status.processes = {{.rank = 0, .pid = 11, .host = "host-a", .num_devices = 3},
                      {.rank = 1,
                       .pid = 12,
                       .host = "host-b",
                       .answers = false,
                       .silence_ns = 2'300'000'000,
                       .first_device = 3,
                       .num_devices = 1}};
  status.devices.resize(4);
  for (uint32_t d = 0; d < 4; ++d) {
    status.devices[d].state.device = d;
    status.devices[d].state.step = 7;
    status.devices[d].stage = d;
  }
  status.devices[0].state.state = State::kRunning;
  status.devices[0].state.running = "h0.mm";
  for (uint32_t d = 1; d < 3; ++d) {
    status.devices[d].state.state = State::kWaiting;
    status.devices[d].state.still_ns = 12'000'000'000;
    status.devices[d].waits_for = {d - 1};
    status.waits.push_back({"mm", d, "tokens from 'h' 0 of 1", {}});
    status.waits.push_back({"h", d, "device " + std::to_string(d - 1) + ", recv of 'h'", {d - 1}});
  }
  status.roots = {0};
  return status;
}

TEST(StackTextTest, PrintsChainsFromTheRoot) {
  EXPECT_EQ(StackText(FourDevices()),
            "gpt (pp=4), process 4711 on host-a: training, 7 of 50 steps done, 4 devices in 2 "
            "processes, for 7 min\n"
            "\n"
            "device 0 runs 'h0.mm', in step 8  <- root: others wait for it\n"
            "  device 1 waits 12 s, in step 8\n"
            "      for device 0, recv of 'h'\n"
            "    device 2 waits 12 s, in step 8\n"
            "        for device 1, recv of 'h'\n"
            "device 3 does not answer: node 1 (process 12 on host-b) has been silent for 2.3 s\n");
}

// Devices of a job that runs well wait for each other all the time.
TEST(StackTextTest, AWaitThatHasHardlyBegunHasNoTime) {
  JobStatus status = FourDevices();
  status.devices[1].state.still_ns = 20'000'000;
  EXPECT_THAT(StackText(status), HasSubstr("  device 1 waits, in step 8\n"));
  EXPECT_THAT(TopText(status, nullptr, 0, 0), HasSubstr("waits for device 0, recv of 'h'\n"));
}

// A receive that was started early says less than what waits for the root.
TEST(StackTextTest, WhatTheRootKeepsWaitingComesFirst) {
  JobStatus status = FourDevices();
  status.devices[1].waits_for = {0, 3};
  status.waits.insert(status.waits.begin(), {"g", 1, "device 3, recv of 'g'", {3}});
  EXPECT_THAT(StackText(status), HasSubstr("      for device 0, recv of 'h'\n"
                                           "      for device 3, recv of 'g'\n"));
  EXPECT_THAT(TopText(status, nullptr, 0, 0), HasSubstr("waits 12 s for device 0, recv of 'h'\n"));
}

TEST(StackTextTest, PrintsCyclesAsSuch) {
  JobStatus status = FourDevices();
  status.devices[0].state.state = State::kWaiting;
  status.devices[0].waits_for = {2};
  status.roots.clear();
  status.cycles = {{0, 1, 2}};
  EXPECT_THAT(StackText(status), HasSubstr("<- cycle: devices 0, 1, 2 wait for each other"));
}

TEST(StackTextTest, SaysWhyThereAreNoDevices) {
  JobStatus status = FourDevices();
  status.devices.clear();
  status.waits.clear();
  status.roots.clear();
  status.note = "the job is loading: no devices run its steps now";
  EXPECT_THAT(StackText(status), HasSubstr("the job is loading"));
}

// What comes from a socket may hold anything.
TEST(StackTextTest, ControlsNoTerminal) {
  JobStatus status = FourDevices();
  status.name = "\x1b[31mred";
  status.waits[1].what = "\x1b]0;title\x07";
  status.devices[0].state.running = "a\nb\x1b";
  for (const std::string& text : {StackText(status), TopText(status, nullptr, 0, 0)}) {
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
    EXPECT_THAT(text, Not(HasSubstr("\x07")));
  }
}

TEST(BusyFractionTest, IsOfTheTimeBetweenTwoLooks) {
  JobStatus before = FourDevices();
  JobStatus after = before;
  before.devices[0].state.age_ns = 1'000;
  before.devices[0].state.idle_ns = 500;
  after.devices[0].state.age_ns = 2'000;
  after.devices[0].state.idle_ns = 750;
  EXPECT_DOUBLE_EQ(BusyFraction(before, after, 0), 0.75);
  EXPECT_TRUE(std::isnan(BusyFraction(before, after, 1)));  // no time has passed
  EXPECT_TRUE(std::isnan(BusyFraction(before, after, 3)));  // it does not answer
  EXPECT_TRUE(std::isnan(BusyFraction(before, after, 9)));
}

// Two stages of two devices each, with 4 micro-batches of 32 tokens a step, two seconds apart.
struct TwoLooks {
  TwoLooks() {
    after.microbatches = 4;
    after.step_time_s = 0.5;
    after.tokens_per_s = 256;
    after.devices.resize(4);
    for (uint32_t d = 0; d < 4; ++d) {
      after.devices[d].stage = d / 2;
      after.devices[d].state.device = d;
      after.devices[d].state.state = State::kRunning;
    }
    before = after;
    for (uint32_t d = 0; d < 4; ++d) {
      after.devices[d].state.age_ns = 2'000'000'000;
      after.devices[d].state.idle_ns = d * 500'000'000;
      after.devices[d].state.microbatches = 20 - 2 * d;
    }
  }

  JobStatus before;
  JobStatus after;
};

TEST(RatesOfStagesTest, AreMeansOfTheDevicesThatAnswer) {
  TwoLooks looks;
  std::vector<StageRates> stages = RatesOfStages(looks.before, looks.after);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[1].num_devices, 2u);
  EXPECT_DOUBLE_EQ(stages[0].busy, 0.875);
  EXPECT_DOUBLE_EQ(stages[0].microbatches_per_s, 9.5);
  EXPECT_DOUBLE_EQ(stages[0].tokens_per_s, 9.5 * 32);
  EXPECT_DOUBLE_EQ(stages[1].microbatches_per_s, 7.5);

  looks.after.devices[0].state.state = State::kSilent;
  looks.after.devices[2].state.state = State::kSilent;
  looks.after.devices[3].state.state = State::kSilent;
  looks.after.tokens_per_s = 0;  // of a job without tokens
  stages = RatesOfStages(looks.before, looks.after);
  EXPECT_DOUBLE_EQ(stages[0].microbatches_per_s, 9);
  EXPECT_TRUE(std::isnan(stages[0].tokens_per_s));
  EXPECT_TRUE(std::isnan(stages[1].busy));
  EXPECT_TRUE(std::isnan(stages[1].microbatches_per_s));
}

// Between two looks that are close to each other, a stage need not have ended a micro-batch.
TEST(RatesOfStagesTest, AreNotKnownWhereNoMicrobatchCouldEnd) {
  TwoLooks looks;
  for (JobStatus::Device& device : looks.after.devices) device.state.microbatches = 0;
  EXPECT_EQ(RatesOfStages(looks.before, looks.after)[0].microbatches_per_s, 0);  // 16 could
  looks.after.step_time_s = 5;
  EXPECT_TRUE(std::isnan(RatesOfStages(looks.before, looks.after)[0].microbatches_per_s));
  EXPECT_TRUE(std::isnan(RatesOfStages(looks.before, looks.after)[0].tokens_per_s));
  EXPECT_THAT(TopText(looks.after, &looks.before, 0, 0),
              HasSubstr("     0       2   88 %               -          -\n"));
  looks.after.step_time_s = 0;  // not known
  EXPECT_TRUE(std::isnan(RatesOfStages(looks.before, looks.after)[0].microbatches_per_s));
}

TEST(SecondsForRatesTest, LetMicrobatchesEndBetweenTwoLooks) {
  JobStatus status = FourDevices();
  EXPECT_DOUBLE_EQ(SecondsForRates(status), 0.3);
  status.microbatches = 4;
  status.step_time_s = 4;
  EXPECT_DOUBLE_EQ(SecondsForRates(status), 2);
  status.step_time_s = 400;
  EXPECT_DOUBLE_EQ(SecondsForRates(status), 5);
}

TEST(SecondsBetweenTest, IsOfTheDevicesThatAnswerBoth) {
  TwoLooks looks;
  EXPECT_DOUBLE_EQ(SecondsBetween(looks.before, looks.after), 2);
  for (JobStatus::Device& device : looks.after.devices) device.state.state = State::kSilent;
  EXPECT_DOUBLE_EQ(SecondsBetween(looks.before, looks.after), 0);
}

// A session that has begun anew counts from 0.
TEST(RatesOfStagesTest, AreNotKnownAcrossSessions) {
  const TwoLooks looks;
  const std::vector<StageRates> stages = RatesOfStages(looks.after, looks.before);
  EXPECT_TRUE(std::isnan(stages[0].microbatches_per_s));
}

// Training after a validation: its devices are older, so that the time between the looks would be
// taken for minutes.
TEST(RatesOfStagesTest, AreNotKnownWhereTheLooksAreAtTwoSessions) {
  TwoLooks looks;
  looks.before.session = 2;
  looks.after.session = 1;
  const std::vector<StageRates> stages = RatesOfStages(looks.before, looks.after);
  EXPECT_TRUE(std::isnan(stages[0].busy));
  EXPECT_TRUE(std::isnan(stages[0].microbatches_per_s));
  EXPECT_TRUE(std::isnan(BusyFraction(looks.before, looks.after, 0)));
  EXPECT_DOUBLE_EQ(SecondsBetween(looks.before, looks.after), 0);
  EXPECT_THAT(TopText(looks.after, &looks.before, 0, 0),
              HasSubstr("     0       2      -               -          -\n"));
  looks.before.session = 1;
  EXPECT_DOUBLE_EQ(BusyFraction(looks.before, looks.after, 0), 1);
}

TEST(TopTextTest, HasARowAStage) {
  const TwoLooks looks;
  const std::string text = TopText(looks.after, &looks.before, 0, 0);
  EXPECT_THAT(text, HasSubstr("\n STAGE DEVICES   BUSY MICRO-BATCHES/S   TOKENS/S\n"
                              "     0       2   88 %             9.5        304\n"
                              "     1       2   38 %             7.5        240\n"));
  EXPECT_THAT(TopText(looks.after, nullptr, 0, 0), Not(HasSubstr("MICRO-BATCHES/S")));
  // Of three rows, one is of a stage.
  const std::string few = TopText(looks.after, &looks.before, 3, 0);
  EXPECT_THAT(few, HasSubstr("and 1 more stage\n"));
  EXPECT_THAT(few, HasSubstr("and 2 more devices\n"));
}

TEST(TopTextTest, HasARowADevice) {
  JobStatus before = FourDevices();
  before.loss = 3.5;
  before.step_time_s = 0.25;
  before.tokens_per_s = 1024;
  JobStatus after = before;
  after.devices[0].state.age_ns = 1'000;
  after.devices[0].state.idle_ns = 250;
  const std::string text = TopText(after, &before, 0, 0);
  EXPECT_THAT(text, HasSubstr("loss 3.5000  step 250 ms (4.00/s)  1024 tokens/s"));
  EXPECT_THAT(text, HasSubstr("75 %"));
  EXPECT_THAT(text, HasSubstr("runs 'h0.mm'"));
  EXPECT_THAT(text, HasSubstr("waits 12 s for device 0, recv of 'h'\n"));
  EXPECT_THAT(text, HasSubstr("node 1 (process 12 on host-b) is silent for 2.3 s"));
  EXPECT_THAT(TopText(after, &before, 2, 0), HasSubstr("and 2 more devices"));
  const std::string narrow = TopText(after, &before, 0, 40);
  for (size_t begin = 0; begin < narrow.size();) {
    const size_t end = narrow.find('\n', begin);
    EXPECT_LE(end - begin, 40u);
    begin = end + 1;
  }
}

TEST(JobStatusJsonTest, HasTheKeysOfScripts) {
  const JobStatus status = FourDevices();
  const nlohmann::json json = nlohmann::json::parse(JobStatusJson(status, &status));
  ASSERT_EQ(json["waits"].size(), 4u);
  EXPECT_EQ(json["waits"][1]["actor"], "h");
  EXPECT_EQ(json["waits"][1]["device"], 1);
  EXPECT_EQ(json["waits"][1]["for"], "device 0, recv of 'h'");
  EXPECT_EQ(json["waits"][1]["devices"], nlohmann::json::array({0}));
  EXPECT_EQ(json["roots"][0]["device"], 0);
  EXPECT_EQ(json["roots"][0]["why"], "runs 'h0.mm'");
  EXPECT_EQ(json["devices"][2]["state"], "waiting");
  EXPECT_EQ(json["devices"][2]["waiting_s"], 12);
  EXPECT_EQ(json["devices"][3]["state"], "silent");
  EXPECT_EQ(json["devices"][3]["rank"], 1);
  EXPECT_EQ(json["processes"][1]["answers"], false);
  EXPECT_EQ(json["job"]["id"], "abc");
  EXPECT_EQ(json["step"], 7);
  EXPECT_TRUE(json["loss"].is_null());  // no step has been done
  EXPECT_FALSE(nlohmann::json::parse(JobStatusJson(status, nullptr)).contains("stages"));
}

TEST(JobStatusJsonTest, HasWhatStagesDo) {
  TwoLooks looks;
  looks.after.devices[1].state.channels = {
      .credits = 8, .credits_in_use = 3, .tokens_waiting = 2, .bytes_in_use = 640};
  const nlohmann::json json = nlohmann::json::parse(JobStatusJson(looks.after, &looks.before));
  ASSERT_EQ(json["stages"].size(), 2u);
  EXPECT_EQ(json["stages"][1]["stage"], 1);
  EXPECT_EQ(json["stages"][1]["devices"], 2);
  EXPECT_EQ(json["stages"][1]["microbatches_per_s"], 7.5);
  EXPECT_EQ(json["stages"][1]["tokens_per_s"], 240);
  EXPECT_EQ(json["devices"][1]["microbatches"], 18);
  EXPECT_EQ(json["devices"][1]["credits"], 8);
  EXPECT_EQ(json["devices"][1]["credits_in_use"], 3);
  EXPECT_EQ(json["devices"][1]["tokens_waiting"], 2);
  EXPECT_EQ(json["devices"][1]["channel_bytes_in_use"], 640);
}

}  // namespace
}  // namespace penstock::cli
