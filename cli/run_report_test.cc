#include "cli/run_report.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunSummary Traced(int64_t steps, std::optional<actors::StepRange> traced) {
  RunSummary summary;
  summary.steps = steps;
  summary.has_trace = true;
  summary.traced = traced;
  summary.trace_capacity = 1000;
  return summary;
}

TEST(RunReportTest, ATraceThatLostStepsSaysWhichItHolds) {
  const RunSummary cut = Traced(200, actors::StepRange{100, 199});
  EXPECT_THAT(SummaryText(cut),
              HasSubstr("\ntrace: steps 101 to 200 of 200: each device keeps its last 1000 events; "
                        "run with train.steps = 100 for earlier steps\n"));
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(cut));
  EXPECT_EQ(json["summary"]["traced_steps"], (nlohmann::json{{"first", 101}, {"last", 200}}));
  EXPECT_THAT(SummaryText(Traced(2, actors::StepRange{1, 1})),
              HasSubstr("\ntrace: step 2 of 2: each device "));
  EXPECT_THAT(SummaryText(Traced(2, {})), HasSubstr("\ntrace: no step as a whole: "));
}

TEST(RunReportTest, AWholeTraceNeedsNoNote) {
  EXPECT_THAT(SummaryText(Traced(200, actors::StepRange{0, 199})), Not(HasSubstr("trace:")));
  RunSummary untraced;
  untraced.steps = 200;
  EXPECT_THAT(SummaryText(untraced), Not(HasSubstr("trace:")));
  EXPECT_THAT(SummaryJson(untraced), Not(HasSubstr("traced_steps")));
}

TEST(RunReportTest, TheSampleSaysWhatItIs) {
  RunSummary summary;
  summary.steps = 1;
  EXPECT_THAT(SummaryText(summary), Not(HasSubstr("sample")));
  summary.sample = "the\xff";
  EXPECT_THAT(SummaryText(summary),
              HasSubstr("\n\nsample of what the trained model writes, as it continues held-out "
                        "text:\n\nthe\xef\xbf\xbd\n"));
}

TEST(RunReportTest, AMeanWithoutTheFirstStepSaysSo) {
  RunSummary summary = Traced(3, actors::StepRange{0, 2});
  summary.path.emplace();
  summary.mean_path.num_steps = 2;
  summary.mean_path.steps = {{.step = 1}, {.step = 2}};
  planner::Plan plan;
  EXPECT_THAT(RunReport(plan, summary, {}),
              HasSubstr("Mean of 2 traced steps, without the first, which warms up: "));
  // The trace has lost it.
  summary.traced = actors::StepRange{1, 2};
  EXPECT_THAT(RunReport(plan, summary, {}), HasSubstr("Mean of 2 traced steps: "));
}

TEST(RunReportTest, UtilisationIsShownWhereThePeakIsKnown) {
  RunSummary summary;
  summary.steps = 3;
  summary.step_times_s = {9, 0.5, 0.5};
  EXPECT_THAT(SummaryText(summary), Not(HasSubstr("MFU")));
  EXPECT_THAT(SummaryJson(summary), Not(HasSubstr("mfu")));
  summary.peak_step_s = 0.2;
  summary.peak_of = "H100";
  EXPECT_THAT(SummaryText(summary), HasSubstr(", MFU 40.0 % of H100\n"));
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(summary));
  EXPECT_EQ(json["summary"]["mfu"].get<double>(), 0.4);
}

TEST(RunReportTest, TheLoadOfOtherProgramsIsNotedBesideAPath) {
  RunSummary summary;
  summary.other_cores = 1.26;
  summary.num_cores = 4;
  EXPECT_EQ(OtherLoadNote(summary), "");
  summary.path.emplace();
  EXPECT_THAT(OtherLoadNote(summary),
              ::testing::StartsWith("other programs kept 1.3 of 4 cores busy: "));
  summary.other_cores = 0.09;
  EXPECT_EQ(OtherLoadNote(summary), "");
  summary.other_cores = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(OtherLoadNote(summary), "");
}

// Sending a scalar does not take a millisecond: the second time, a thread had no core.
TEST(RunReportTest, ATransferWithoutACoreWaits) {
  planner::Plan plan;
  plan.devices.resize(2);
  plan.transfers = {{.source = 0, .destination = 1, .num_bytes = 4}};
  for (planner::DevicePlan& device : plan.devices) {
    device.actors.resize(1);
    device.actors[0].target = 0;
    device.phases.resize(2);
    device.phases[0].name = "exchange";
    device.phases[0].num_actors = 1;
    device.phases[0].predicted_s = 1e-6;
    device.phases[1].name = "before";
    device.phases[1].predicted_s = 2e-9;
  }
  plan.devices[0].actors[0].kind = planner::ActorKind::kSend;
  plan.devices[1].actors[0].kind = planner::ActorKind::kRecv;
  constexpr int64_t kMs = 1'000'000;
  std::vector<actors::TraceEvent> events;
  for (uint32_t device = 0; device < 2; ++device) {
    events.push_back({device, 0, 0, 0, 0, 0, 2000});
    events.push_back({device, planner::kNone, 0, 0, 0, 0, 2000});
    events.push_back({device, 0, 0, 0, 1, kMs, 4 * kMs});
    events.push_back({device, planner::kNone, 0, 0, 1, kMs, 4 * kMs});
    events.push_back({device, planner::kNone, 1, 0, 1, 4 * kMs, 5 * kMs});
  }
  RunSummary summary;
  summary.steps = 2;
  const std::string report = RunReport(plan, summary, events);
  EXPECT_THAT(report, ::testing::ContainsRegex("\\| 0 \\| exchange \\| 2 \\| 1.00 us \\| 0.00 us "
                                               "\\| 2.00 us \\| 1.50 ms \\| 2.00 \\|\n"));
  EXPECT_THAT(report, ::testing::ContainsRegex("\\| 1 \\| before \\| 1 \\| .* \\| - \\|\n"));
}

}  // namespace
}  // namespace penstock::cli
