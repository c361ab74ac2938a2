#include "planner/draw/draw_timeline.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Draw(const Pipeline& pipeline, const std::string& policy, const std::string& title) {
  const PolicyRegistry policies = BuiltinPolicies();
  const PipelineOrders orders = *PlanPipeline(*policies.Find(policy), pipeline);
  return DrawTimeline(pipeline, *RunPipeline(pipeline, orders), title);
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(DrawTimelineTest, HasEveryPhaseWithItsTimes) {
  const Pipeline pipeline = *MakePipeline({.num_groups = 2, .num_microbatches = 3});
  const std::string svg = Draw(pipeline, "zb-h1", "a < b");
  EXPECT_EQ(Count(svg, "<g><title>"), 2u * 3 * 3);
  EXPECT_THAT(svg, HasSubstr("<title>F0 of stage 1: 1 to 2</title>"));
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("W weight gradient"));
  EXPECT_EQ(Count(svg, "<path "), 2u);  // what is kept
}

TEST(DrawTimelineTest, LegendsTellWhatThereIs) {
  const Pipeline pipeline = *MakePipeline(
      {.num_groups = 2, .num_microbatches = 4, .num_chunks = 2, .splits_backward = false});
  const std::string svg = Draw(pipeline, "interleaved", "");
  EXPECT_THAT(svg, Not(HasSubstr("W weight gradient")));
  EXPECT_THAT(svg, HasSubstr("(light: odd chunks)"));
  // Numbers on light colours are dark.
  EXPECT_GT(Count(svg, "fill=\"#f9b572\""), 1u);
  EXPECT_EQ(Count(svg, "fill=\"white\">"), 0u);
  EXPECT_GT(Count(svg, "fill=\"#202124\">"), 8u);
}

}  // namespace
}  // namespace penstock::planner
