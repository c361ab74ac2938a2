#include "actors/trace/trace.h"

#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/engine_harness.h"
#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using testing::EnginePlanBuilder;
using ::testing::HasSubstr;
using ::testing::Not;

planner::Plan SmallPlan() {
  EnginePlanBuilder b(2);
  b.AddDevice();
  const uint32_t x = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "a<b>", "t.iota", {}, {x});
  b.BeginPhase(0, "update", PhaseKind::kAfterStep, planner::Lane::kPerStep, false);
  b.AddKernel(0, "w", "t.iota", {}, {x});
  planner::Plan plan = b.Build();
  plan.name = "small & neat";
  return plan;
}

// The first actor of device 0 sends to the first of device 1.
planner::Plan TraceTransferPlan() {
  planner::Plan plan = SmallPlan();
  plan.devices.push_back(plan.devices[0]);
  plan.devices[0].actors[0].kind = planner::ActorKind::kSend;
  plan.devices[0].actors[0].target = 0;
  plan.devices[1].actors[0].kind = planner::ActorKind::kRecv;
  plan.devices[1].actors[0].target = 0;
  return plan;
}

std::vector<TraceEvent> SmallTrace() {
  return {{0, 0, 0, 0, 3, 1'000'000, 1'400'000},
          {0, planner::kNone, 0, 0, 3, 1'000'000, 1'500'000},
          {0, planner::kNone, 0, 1, 3, 1'500'000, 2'000'000},
          {0, planner::kNone, 1, 0, 3, 2'000'000, 4'000'000},
          {0, planner::kNone, 0, 0, 4, 4'000'000, 5'000'000},
          {7, 0, 0, 0, 3, 0, 1}};  // of a device that the plan does not have
}

TEST(TraceTest, JsonHasAnEventEachAndNames) {
  std::ostringstream out;
  WriteTraceJson(SmallPlan(), SmallTrace(), out);
  const nlohmann::json trace = nlohmann::json::parse(out.str());
  std::vector<std::string> names;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") names.push_back(event["name"]);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("a<b>", "F", "F", "update", "F"));
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] == "F" && event["ts"] == 500) {
      EXPECT_EQ(event["args"]["microbatch"], 1);
    }
    if (event["name"] != "update") continue;
    EXPECT_DOUBLE_EQ(event["dur"], 2000);
    EXPECT_EQ(event["args"]["step"], 4);  // counted from 1
    EXPECT_FALSE(event["args"].contains("microbatch"));
  }
}

// Of several devices, whose tracks are kept side by side.
TEST(TraceTest, JsonHasATrackForEachKindOfActor) {
  for (int kind = 0; kind <= static_cast<int>(planner::ActorKind::kCopy); ++kind) {
    planner::Plan plan = SmallPlan();
    plan.devices[0].actors[0].kind = static_cast<planner::ActorKind>(kind);
    plan.devices.push_back(plan.devices[0]);
    std::ostringstream out;
    WriteTraceJson(plan, {{0, 0, 0, 0, 3, 0, 1000}, {1, 0, 0, 0, 3, 0, 1000}}, out);
    std::map<int, std::string> tracks;  // by device
    const nlohmann::json trace = nlohmann::json::parse(out.str());
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event["name"] == "thread_name") tracks[event["pid"]] += event["args"]["name"];
    }
    ASSERT_EQ(tracks.size(), 2u) << kind;
    EXPECT_EQ(tracks[0], tracks[1]) << kind;
    if (plan.devices[0].actors[0].kind == planner::ActorKind::kCopy) {
      EXPECT_EQ(tracks[0], "copies to and from the host");
    }
  }
}

TEST(TraceTest, JsonTellsWaitingFromTransfer) {
  const planner::Plan plan = TraceTransferPlan();
  std::ostringstream out;
  WriteTraceJson(
      plan, {{0, 0, 0, 0, 0, 9'000'000, 9'500'000}, {1, 0, 0, 0, 0, 2'000'000, 10'000'000}}, out);
  std::vector<double> waits;
  const nlohmann::json trace = nlohmann::json::parse(out.str());
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") waits.push_back(event["args"]["wait_ms"]);
  }
  EXPECT_THAT(waits, ::testing::ElementsAre(0, 7.5));
}

TEST(TraceTest, SvgShowsWhatTheStepTook) {
  std::ostringstream out;
  WriteTimelineSvg(SmallPlan(), SmallTrace(), {3, 1'250'000, 4'250'000}, out);
  const std::string svg = out.str();
  EXPECT_THAT(svg, HasSubstr("small &amp; neat, step 4: 3.000 ms"));
  EXPECT_THAT(svg, HasSubstr("<title>F 1: 0.500 ms</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>update: 2.000 ms</title>"));
  EXPECT_THAT(svg, HasSubstr(">ms</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("a<b>")));
  // What began before the window is clipped at its left edge, 90; the next step's work is pale.
  EXPECT_THAT(svg, HasSubstr("<title>F 0: 0.500 ms</title><rect x=\"90.00\""));
  EXPECT_THAT(svg, HasSubstr("<g opacity=\"0.4\"><title>F 0 of step 5: 1.000 ms</title>"));
  std::ostringstream empty;
  WriteTimelineSvg(SmallPlan(), {}, {}, empty);
  EXPECT_THAT(empty.str(), HasSubstr("</svg>"));
}

// A receive that is posted long before the step does not stretch the drawing.
TEST(TraceTest, SvgDrawsAReceiveFromWhenItsDataMoved) {
  const planner::Plan plan = TraceTransferPlan();
  std::ostringstream out;
  WriteTimelineSvg(plan, {{0, 0, 0, 0, 3, 15'000'000, 16'000'000}, {1, 0, 0, 0, 3, 0, 17'000'000}},
                   {3, 10'000'000, 20'000'000}, out);
  EXPECT_THAT(out.str(), HasSubstr("step 4: 10.000 ms"));
  EXPECT_THAT(out.str(), HasSubstr("<title>a&lt;b&gt; 0: 1.000 ms</title><rect x=\"640.00\""));
}

// The send of device 0 and the receive of device 1 have rows of their own below the compute lane.
TEST(TraceTest, SvgHasARowForEachKindOfCommunication) {
  planner::Plan plan = TraceTransferPlan();
  const std::vector<TraceEvent> events = {{0, 0, 0, 0, 3, 15'000'000, 16'000'000},
                                          {1, 0, 0, 0, 3, 0, 17'000'000}};
  const auto rows_of = [&] {
    std::ostringstream out;
    WriteTimelineSvg(plan, events, {3, 10'000'000, 20'000'000}, out);
    const std::string svg = out.str();
    std::vector<double> rows;  // of the rectangles of acts, from the top of their device
    const std::regex rectangle("1.000 ms</title><rect x=\"640.00\" y=\"([0-9.]+)\"");
    for (auto it = std::sregex_iterator(svg.begin(), svg.end(), rectangle);
         it != std::sregex_iterator(); ++it) {
      rows.push_back(std::stod((*it)[1]));
    }
    EXPECT_THAT(svg, HasSubstr(">send</text>"));
    EXPECT_THAT(svg, HasSubstr(">receive</text>"));
    return std::pair(rows, svg);
  };
  const auto [rows, svg] = rows_of();
  EXPECT_THAT(svg, Not(HasSubstr(">collective</text>")));
  // A device takes 26 for its lanes, 9 for each row of links and a gap of 10.
  EXPECT_THAT(rows, ::testing::ElementsAre(46 + 26, 46 + 26 + 9 + 9 + 10 + 26 + 9));
  plan.devices[0].actors[1].kind = planner::ActorKind::kCollective;
  plan.devices[0].actors[1].target = 0;
  EXPECT_THAT(rows_of().second, HasSubstr(">collective</text>"));
}

}  // namespace
}  // namespace penstock::actors
