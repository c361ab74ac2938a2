#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;
using ::testing::StartsWith;

Timeline ZeroBubbleTimeline(const std::string& policy, const Pipeline& pipeline) {
  const PolicyRegistry policies = BuiltinPolicies();
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(*policies.Find(policy), pipeline);
  EXPECT_TRUE(orders.ok()) << orders.status();
  const absl::StatusOr<Timeline> timeline = RunPipeline(pipeline, *orders);
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return *timeline;
}

TEST(ZeroBubblePoliciesTest, TheOrdersOfTheHeader) {
  const Pipeline pipeline = *MakePipeline({.num_groups = 3, .num_microbatches = 4});
  const PolicyRegistry policies = BuiltinPolicies();
  const PipelineOrders orders = *PlanPipeline(*policies.Find("zb-h1"), pipeline);
  std::vector<std::string> texts;
  for (const std::vector<PhaseChoice>& order : orders) {
    std::string& text = texts.emplace_back();
    for (const PhaseChoice& phase : order) {
      StrAppend(&text, text.empty() ? "" : " ", ToString(phase));
    }
  }
  EXPECT_THAT(texts, ElementsAre("F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
                                 "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
                                 "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"));
}

TEST(ZeroBubblePoliciesTest, UnitTimes) {
  Pipeline pipeline = *MakePipeline({.num_groups = 4, .num_microbatches = 8});
  const Timeline h1 = ZeroBubbleTimeline("zb-h1", pipeline);
  EXPECT_DOUBLE_EQ(h1.makespan_s, 27);
  EXPECT_THAT(h1.peak_activations, ElementsAre(4, 4, 4, 4));
  const Timeline h2 = ZeroBubbleTimeline("zb-h2", pipeline);
  EXPECT_DOUBLE_EQ(h2.makespan_s, 27);
  EXPECT_DOUBLE_EQ(h2.span_s, 24);
  EXPECT_DOUBLE_EQ(ZeroBubbleTimeline("zb-1p", pipeline).span_s, 27);
  EXPECT_DOUBLE_EQ(ZeroBubbleTimeline("zb-2p", pipeline).span_s, 24);
  for (PipelineEdge& edge : pipeline.edges) edge.latency_s = 0.1;
  EXPECT_NEAR(ZeroBubbleTimeline("zb-h1", pipeline).makespan_s, 28.2, 1e-9);
}

// Qi et al. 2023, the table of bubble rates with profiled times in ms.
struct Row {
  UniformPipeline pipeline;
  std::vector<std::pair<std::string, double>> bubbles;
};

TEST(ZeroBubblePoliciesTest, BubblesAreThoseOfThePaper) {
  const Row rows[] = {
      {{8, 24, 1, Placement::kLoop, 18.522, 18.086, 9.337, 0.601},
       {{"1f1b", 0.2431},
        {"zb-h1", 0.1585},
        {"zb-h2", 0.1083},
        {"zb-1p", 0.1585},
        {"zb-2p", 0.0433}}},
      {{8, 32, 1, Placement::kLoop, 29.802, 29.428, 19.530, 0.577},
       {{"1f1b", 0.1898},
        {"zb-h1", 0.1045},
        {"zb-h2", 0.0559},
        {"zb-1p", 0.1045},
        {"zb-2p", 0.0022}}},
      {{16, 48, 1, Placement::kLoop, 11.347, 11.248, 8.132, 0.377},
       {{"1f1b", 0.2552},
        {"zb-h1", 0.1397},
        {"zb-h2", 0.0672},
        {"zb-1p", 0.1397},
        {"zb-2p", 0.0066}}},
  };
  for (const Row& row : rows) {
    for (const auto& [policy, bubble] : row.bubbles) {
      UniformPipeline uniform = row.pipeline;
      uniform.splits_backward = policy != "1f1b";
      EXPECT_NEAR(BubbleOf(ZeroBubbleTimeline(policy, *MakePipeline(uniform))), bubble, 5e-5)
          << policy << ", " << uniform.num_groups << " stages";
    }
  }
}

TEST(ZeroBubblePoliciesTest, PlannedOrdersKeepALimitOfMemory) {
  Pipeline pipeline = *MakePipeline({.num_groups = 4, .num_microbatches = 12});
  pipeline.stages[1].seconds = {1.3, 1.2, 1.1};
  pipeline.stages[3].seconds = {0.8, 1.5, 0.7};
  for (const double limit : {4.0, 5.0, 6.0}) {
    pipeline.memory_limit = limit;
    EXPECT_THAT(ZeroBubbleTimeline("zb-2p", pipeline).peak_activations, Each(Le(limit)));
  }
}

// A slow stage leaves the one before it no time for the forwards that a fast one behind it has.
TEST(ZeroBubblePoliciesTest, OrdersOfUnevenStagesAreComplete) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> seconds(0.1, 3);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    Pipeline pipeline = *MakePipeline({.num_groups = 1 + static_cast<int>(random() % 6),
                                       .num_microbatches = 1 + static_cast<int>(random() % 9)});
    for (VirtualStage& stage : pipeline.stages) {
      stage.seconds = {seconds(random), seconds(random), seconds(random)};
      stage.activation = seconds(random);
    }
    for (PipelineEdge& edge : pipeline.edges) edge.latency_s = seconds(random) * (random() % 3);
    if (random() % 2 == 0) pipeline.memory_limit = 3.0 * pipeline.num_groups;
    for (const char* policy : {"zb-h1", "zb-h2", "zb-1p", "zb-2p"}) {
      EXPECT_GT(ZeroBubbleTimeline(policy, pipeline).span_s, 0) << policy;
    }
  }
}

TEST(ZeroBubblePoliciesTest, TooLittleMemoryIsAnError) {
  Pipeline pipeline = *MakePipeline({.num_groups = 4, .num_microbatches = 8});
  pipeline.memory_limit = 0.5;
  const PolicyRegistry policies = BuiltinPolicies();
  for (const std::string policy : {"zb-1p", "auto"}) {
    const absl::Status status = PlanPipeline(*policies.Find(policy), pipeline).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                StartsWith(StrCat("policy '", policy, "': no order keeps within 0.5 activations")));
  }
}

}  // namespace
}  // namespace penstock::planner
