#include "planner/policy/greedy_policy.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Pipeline GreedyChain(int num_chunks = 1) {
  return *MakePipeline(
      {.num_groups = 4, .num_microbatches = 8, .num_chunks = num_chunks, .splits_backward = false});
}

Timeline GreedyTimeline(const Policy& policy, const Pipeline& pipeline) {
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(policy, pipeline);
  EXPECT_TRUE(orders.ok()) << orders.status();
  return *RunPipeline(pipeline, *orders);
}

PipelineOrders Named(std::string_view policy, const Pipeline& pipeline) {
  const PolicyRegistry policies = BuiltinPolicies();
  return *PlanPipeline(*policies.Find(policy), pipeline);
}

TEST(GreedyPolicyTest, ForwardsFirstIsGPipe) {
  const auto policy = MakeGreedyPolicy(
      {.name = "forward-first", .before = [](const ReadyPhase& a, const ReadyPhase& b) {
         return a.phase.kind < b.phase.kind;
       }});
  EXPECT_EQ(*PlanPipeline(*policy, GreedyChain()), Named("gpipe", GreedyChain()));
}

TEST(GreedyPolicyTest, BackwardsFirstWithALimitIs1f1b) {
  const auto policy = MakeGreedyPolicy(
      {.name = "backward-first",
       .before = [](const ReadyPhase& a,
                    const ReadyPhase& b) { return a.phase.kind > b.phase.kind; },
       .most_held = [](const Pipeline& pipeline,
                       int group) { return static_cast<double>(pipeline.num_groups - group); }});
  EXPECT_EQ(*PlanPipeline(*policy, GreedyChain()), Named("1f1b", GreedyChain()));
  EXPECT_THAT(GreedyTimeline(*policy, GreedyChain()).peak_activations, ElementsAre(4, 3, 2, 1));
}

// Nothing is preferred: what was ready first runs first.
TEST(GreedyPolicyTest, EqualPhasesRunInTheOrderInWhichTheyWereReady) {
  const auto policy = MakeGreedyPolicy(
      {.name = "fifo", .before = [](const ReadyPhase&, const ReadyPhase&) { return false; }});
  const Timeline timeline = GreedyTimeline(*policy, GreedyChain(2));
  for (const std::vector<PhaseRun>& runs : timeline.groups) {
    EXPECT_EQ(runs.front().phase.kind, PhaseKind::kForward);
  }
  EXPECT_LT(timeline.makespan_s, 8 * 3 * 2);
}

TEST(GreedyPolicyTest, TheLimitOfThePipelineHolds) {
  Pipeline pipeline = GreedyChain();
  pipeline.memory_limit = 2;
  const auto policy = MakeGreedyPolicy(
      {.name = "forward-first", .before = [](const ReadyPhase& a, const ReadyPhase& b) {
         return a.phase.kind < b.phase.kind;
       }});
  EXPECT_THAT(GreedyTimeline(*policy, pipeline).peak_activations, Each(2));
  pipeline.memory_limit = 0.5;
  EXPECT_THAT(PlanPipeline(*policy, pipeline).status().message(),
              HasSubstr("policy 'forward-first': all groups wait for memory: group 0 keeps 0 of "
                        "0.5"));
}

}  // namespace
}  // namespace penstock::planner
