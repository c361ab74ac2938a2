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

TEST(TopTextTest, HasARowADevice) {
  JobStatus before = FourDevices();
  before.loss = 3.5;
  before.step_time_s = 0.25;
  before.tokens_per_s = 1024;
  JobStatus after = before;
  after.devices[0].state.age_ns = 1'000;
  after.devices[0].state.idle_ns = 250;
  const std::string text = TopText(after, &before, 0, 0);
  EXPECT_THAT(text, HasSubstr("loss 3.5000  step 0.250 s (4.00/s)  1024 tokens/s"));
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
}

}  // namespace
}  // namespace penstock::cli
