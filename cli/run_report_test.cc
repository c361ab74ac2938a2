#include "cli/run_report.h"

#include <string>

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

}  // namespace
}  // namespace penstock::cli
