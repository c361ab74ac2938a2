#include "actors/trace.h"

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
  b.BeginPhase(0, "update", PhaseKind::kAfterStep, planner::Lane::kOnce, false);
  b.AddKernel(0, "w", "t.iota", {}, {x});
  planner::Plan plan = b.Build();
  plan.name = "small & neat";
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
  EXPECT_THAT(names, ::testing::ElementsAre("a<b>", "F0", "F1", "update", "F0"));
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] != "update") continue;
    EXPECT_DOUBLE_EQ(event["dur"], 2000);
    EXPECT_EQ(event["args"]["step"], 3);
  }
}

TEST(TraceTest, SvgShowsOneStep) {
  std::ostringstream out;
  WriteTimelineSvg(SmallPlan(), SmallTrace(), 3, out);
  const std::string svg = out.str();
  EXPECT_THAT(svg, HasSubstr("small &amp; neat, step 3: 3.000 ms"));
  EXPECT_THAT(svg, HasSubstr("<title>F 1: 0.500 ms</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>update: 2.000 ms</title>"));
  EXPECT_THAT(svg, HasSubstr(">ms</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("a<b>")));
  std::ostringstream empty;
  WriteTimelineSvg(SmallPlan(), {}, 0, empty);
  EXPECT_THAT(empty.str(), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace penstock::actors
