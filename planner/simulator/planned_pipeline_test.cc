#include "planner/simulator/planned_pipeline.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/cluster/presets.h"
#include "planner/policy/policy.h"
#include "tests/support/gpt_plan.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::Gt;

// A policy of another name that notes the pipelines for which it is asked.
class NotingPolicy : public Policy {
 public:
  explicit NotingPolicy(std::shared_ptr<const Policy> policy) : policy_(std::move(policy)) {}
  std::string_view name() const override { return "noting"; }
  PolicyNeeds needs() const override { return policy_->needs(); }
  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    asked_.push_back(pipeline);
    return policy_->PlanOrders(pipeline);
  }
  const std::vector<Pipeline>& asked() const { return asked_; }

 private:
  const std::shared_ptr<const Policy> policy_;
  mutable std::vector<Pipeline> asked_;
};

class PlannedPipelineTest : public testing::PlannerFixture {
 protected:
  // Two products on one device, one of eight times their size on two others.
  graph::Graph UnequalStages() const {
    return Differentiate(
        MustParse("mesh m0 = [mb=6 temporal]\n"
                  "mesh m1 = [mb=6 temporal, a=2]\n"
                  "graph pipeline {\n"
                  "  %x = input : f32[3072, 512] @[mb, _] on m0 stage 0\n"
                  "  %w0 = parameter {std=0.3} : f32[512, 512] @[_, _] on m0 stage 0\n"
                  "  %w1 = parameter {std=0.3} : f32[512, 512] @[_, _] on m0 stage 0\n"
                  "  %h = matmul(%x, %w0) : f32[3072, 512] @[mb, _] on m0 stage 0\n"
                  "  %y = matmul(%h, %w1) : f32[3072, 512] @[mb, _] on m0 stage 0\n"
                  "  %w2 = parameter {std=0.3} : f32[512, 8192] @[_, a] on m1 stage 1\n"
                  "  %z = matmul(%y, %w2) : f32[3072, 8192] @[mb, a] on m1 stage 1\n"
                  "  %loss = sum_squares(%z) : f32[] on m1 stage 1\n"
                  "  return %loss\n"
                  "}\n"));
  }

  const Machine machine_ = {*FindClusterPreset("v100-ib100:1")};
};

TEST_F(PlannedPipelineTest, UnequalStagesAreOrderedByTheirTimes) {
  PolicyRegistry policies = policies_;
  const auto noting = std::make_shared<NotingPolicy>(
      std::shared_ptr<const Policy>(policies_.Find("zb-1p"), [](const Policy*) {}));
  ASSERT_TRUE(policies.Add(noting).ok());
  CompileOptions options = OptionsFor("noting");
  options.policies = &policies;
  options.machine = &machine_;
  const absl::StatusOr<Plan> plan = planner::Compile(ops_, UnequalStages(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->predicted_step_s, 0);

  const Pipeline pipeline = PipelineOfPlan(*plan, {2}, {});
  ASSERT_EQ(pipeline.stages.size(), 2u);
  EXPECT_GT(pipeline.stages[1].seconds[0], 1.5 * pipeline.stages[0].seconds[0]);
  for (const VirtualStage& stage : pipeline.stages) {
    EXPECT_EQ(stage.kinds, (PhaseKinds{true, true, true}));
    EXPECT_LT(stage.seconds[0], 1e-3);
  }
  ASSERT_EQ(pipeline.edges.size(), 2u);
  for (const PipelineEdge& edge : pipeline.edges) {
    EXPECT_GE(edge.transfer_s, machine_.cluster.PathLatencyS(0, 1));
  }
  // Asked again, the policy has had these times, and the plan has what it has said.
  ASSERT_GE(noting->asked().size(), 2u);
  const Pipeline& last = noting->asked().back();
  for (size_t v = 0; v < last.stages.size(); ++v) {
    EXPECT_EQ(last.stages[v].seconds, pipeline.stages[v].seconds) << v;
  }
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(*policies_.Find("zb-1p"), pipeline);
  ASSERT_TRUE(orders.ok()) << orders.status();
  for (size_t g = 0; g < orders->size(); ++g) EXPECT_EQ(plan->stages[g].order, (*orders)[g]) << g;
}

// What a policy would order otherwise for equal stages.
TEST_F(PlannedPipelineTest, AnOrderThatDependsOnTimesIsThatOfTheModelledOnes) {
  for (const std::string name : {"zb-2p", "auto"}) {
    CompileOptions options = OptionsFor(name);
    options.machine = &machine_;
    const absl::StatusOr<Plan> plan = planner::Compile(ops_, UnequalStages(), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Pipeline pipeline = PipelineOfPlan(*plan, {2}, {});
    const absl::StatusOr<PipelineOrders> orders = PlanPipeline(*policies_.Find(name), pipeline);
    ASSERT_TRUE(orders.ok()) << orders.status();
    PipelineOrders planned;
    for (const StagePlan& stage : plan->stages) planned.push_back(stage.order);
    EXPECT_EQ(planned, *orders) << name;

    const Plan of_constants = planner::Compile(ops_, UnequalStages(), OptionsFor(name)).value();
    PipelineOrders others;
    for (const StagePlan& stage : of_constants.stages) others.push_back(stage.order);
    const absl::StatusOr<Timeline> timeline = RunPipeline(pipeline, planned);
    const absl::StatusOr<Timeline> before = RunPipeline(pipeline, others);
    ASSERT_TRUE(timeline.ok() && before.ok());
    if (name == "auto") {
      EXPECT_LE(timeline->span_s, 1.01 * before->span_s);
    }
  }
}

TEST_F(PlannedPipelineTest, BidirectionalPoliciesKnowTheTimesOfTheirStages) {
  for (const std::string name : {"chimera", "dualpipe"}) {
    PolicyRegistry policies = policies_;
    const auto noting = std::make_shared<NotingPolicy>(
        std::shared_ptr<const Policy>(policies_.Find(name), [](const Policy*) {}));
    ASSERT_TRUE(policies.Add(noting).ok());
    testing::GptPlanOptions options;
    options.strategy = "pp=2";
    options.microbatches = 8;
    options.policy = "noting";
    options.machine = &machine_;
    const FoldedPlan plan = testing::PlanSmallGpt(options, policies);
    ASSERT_FALSE(plan.is_folded());
    const Pipeline pipeline = PipelineOfPlan(plan.common, {2, 2, Placement::kBidirectional}, {});
    EXPECT_EQ(pipeline.num_microbatches, 4);
    ASSERT_EQ(pipeline.stages.size(), 4u);
    // Stages 2 and 3 are copies of 0 and 1, on the other groups.
    for (size_t v = 0; v < 2; ++v) {
      EXPECT_EQ(pipeline.stages[v].kinds, pipeline.stages[v + 2].kinds);
      EXPECT_NEAR(pipeline.stages[v].seconds[0] / pipeline.stages[v + 2].seconds[0], 1, 0.1);
    }
    // The second half of the layers has the loss.
    EXPECT_NE(pipeline.stages[0].seconds, pipeline.stages[1].seconds);
    EXPECT_EQ(pipeline.edges.size(), 4u);
    for (const PipelineEdge& edge : pipeline.edges) EXPECT_THAT(edge.transfer_s, Gt(0));
    const Pipeline& last = noting->asked().back();
    ASSERT_EQ(last.stages.size(), 4u);
    for (size_t v = 0; v < 4; ++v) {
      EXPECT_EQ(last.stages[v].seconds, pipeline.stages[v].seconds) << name << ", stage " << v;
    }
  }
}

}  // namespace
}  // namespace penstock::planner
