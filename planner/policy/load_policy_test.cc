#include "planner/policy/load_policy.h"

#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"
#include "tests/support/temp_folder.h"

namespace penstock::planner {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::ThrowsMessage;

TEST(LoadPolicyTest, TheExampleFillsTheBubbleWithWeightGradients) {
  const auto policy = LoadPolicy(PENSTOCK_EXAMPLES "/example_policy.so");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_TRUE((*policy)->needs().splits_backward);
  const Pipeline pipeline = *MakePipeline({.num_groups = 4, .num_microbatches = 8});
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(**policy, pipeline);
  ASSERT_TRUE(orders.ok()) << orders.status();
  const absl::StatusOr<Timeline> timeline = RunPipeline(pipeline, *orders);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_LT(timeline->makespan_s, 33);  // what 1f1b takes
  EXPECT_THAT(timeline->peak_activations, Each(Le(4)));
}

// The comparisons of the examples give the orders of the built-in policies, whatever the stages
// take.
TEST(LoadPolicyTest, TheComparisonsAreGPipeAnd1F1B) {
  const PolicyRegistry builtin = BuiltinPolicies();
  for (const auto& [file, name] : {std::pair("gpipe", "gpipe"), std::pair("one_f_one_b", "1f1b")}) {
    const auto policy = LoadPolicy(StrCat(PENSTOCK_EXAMPLES "/example_", file, ".so"));
    ASSERT_TRUE(policy.ok()) << policy.status();
    for (const int groups : {1, 2, 4, 7}) {
      const Pipeline pipeline =
          *MakePipeline({.num_groups = groups, .num_microbatches = 9, .splits_backward = false});
      const absl::StatusOr<PipelineOrders> orders = PlanPipeline(**policy, pipeline);
      ASSERT_TRUE(orders.ok()) << orders.status();
      const absl::StatusOr<PipelineOrders> known = PlanPipeline(*builtin.Find(name), pipeline);
      ASSERT_TRUE(known.ok()) << known.status();
      EXPECT_EQ(*orders, *known) << name << " on " << groups;
    }
  }
}

TEST(LoadPolicyTest, ALibraryMayDecideWhileThePlanRuns) {
  const auto policy = LoadPolicy(PENSTOCK_EXAMPLES "/example_gradients_first.so");
  ASSERT_TRUE(policy.ok()) << policy.status();
  const Pipeline pipeline =
      *MakePipeline({.num_groups = 4, .num_microbatches = 8, .splits_backward = false});
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(**policy, pipeline);
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_THAT(*orders, Each(IsEmpty()));
  const StageContext context = pipeline.ContextOf(1);
  const absl::StatusOr<int> credits = ActivationCreditsOf(**policy, context);
  ASSERT_TRUE(credits.ok()) << credits.status();
  EXPECT_EQ(*credits, 3);
  const absl::StatusOr<StageSchedule> schedule = MakeSchedule(**policy, context);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  StageView view;
  view.chunks.resize(1);
  EXPECT_EQ(schedule->scheduler->Next(view), std::nullopt);
  view.chunks[0].issued = {5, 2, 0};
  view.chunks[0].ready = {1, 0, 0};
  EXPECT_EQ(schedule->scheduler->Next(view), (PhaseChoice{PhaseKind::kForward, 5, 0}));
  view.chunks[0].ready = {1, 2, 0};
  EXPECT_EQ(schedule->scheduler->Next(view), (PhaseChoice{PhaseKind::kBackward, 2, 0}));
}

TEST(LoadPolicyTest, WhatIsNoPolicyIsAnError) {
  const testing::TempFolder folder;
  EXPECT_THAT(LoadPolicy((folder.path() / "none.so").string()).status().message(),
              HasSubstr("none.so: the policy cannot be loaded"));
  const std::string text = (folder.path() / "text.so").string();
  std::ofstream(text) << "no library";
  EXPECT_THAT(LoadPolicy(text).status().message(), HasSubstr("the policy cannot be loaded"));
  EXPECT_THAT(LoadPolicy("libm.so.6").status().message(), HasSubstr("./libm.so.6"));
}

// tests/programs/faulty_policy.cc has a variable that says what is wrong with it.
class FaultyPolicyTest : public ::testing::Test {
 protected:
  static std::string ErrorOf(const char* fault) {
    setenv("PENSTOCK_POLICY_FAULT", fault, 1);
    const auto policy = LoadPolicy(PENSTOCK_FAULTY_POLICY);
    if (!policy.ok()) return std::string(policy.status().message());
    const Pipeline pipeline = *MakePipeline({.num_groups = 2, .num_microbatches = 2});
    const absl::StatusOr<PipelineOrders> orders = PlanPipeline(**policy, pipeline);
    if (!orders.ok()) return std::string(orders.status().message());
    return std::string(RunPipeline(pipeline, *orders).status().message());
  }
};

TEST_F(FaultyPolicyTest, IsRefusedWithTheReason) {
  EXPECT_THAT(ErrorOf("version"), HasSubstr("a policy for version 7 of policy_plugin.h"));
  EXPECT_THAT(ErrorOf("empty"), HasSubstr("none of `before`, `plan` and `next`"));
  EXPECT_THAT(ErrorOf("placement"), HasSubstr("placement 9, 1 to 1 chunks"));
  EXPECT_THAT(ErrorOf("null"), HasSubstr("the library exports no policy"));
  EXPECT_THAT(ErrorOf("entry"), HasSubstr("its penstock_policy_plugin threw"));
  EXPECT_THAT(ErrorOf("nothing"), HasSubstr("its plan appends nothing for group 0"));
  EXPECT_THAT(ErrorOf("group"), HasSubstr("it appends a phase of kind 0 to group 5"));
  EXPECT_THAT(ErrorOf("fail"), HasSubstr("not today"));
  EXPECT_THAT(ErrorOf("throw"), HasSubstr("threw: oops"));
  EXPECT_THAT(ErrorOf("twice"), HasSubstr("orders stage 0 wrongly: F of micro-batch 0"));
  EXPECT_THAT(ErrorOf("deadlock"), HasSubstr("the orders of the groups wait for each other"));
  EXPECT_EQ(ErrorOf("none"), "");
}

TEST_F(FaultyPolicyTest, AWrongChoiceThrows) {
  for (const auto& [fault, error] :
       {std::pair("next throws", "oops"), std::pair("next kind", "it chooses a phase of kind 9")}) {
    setenv("PENSTOCK_POLICY_FAULT", fault, 1);
    const auto policy = LoadPolicy(PENSTOCK_FAULTY_POLICY);
    ASSERT_TRUE(policy.ok()) << policy.status();
    const Pipeline pipeline = *MakePipeline({.num_groups = 2, .num_microbatches = 2});
    const absl::StatusOr<StageSchedule> schedule = MakeSchedule(**policy, pipeline.ContextOf(0));
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    StageView view;
    view.chunks.resize(1);
    EXPECT_THAT([&] { schedule->scheduler->Next(view); }, ThrowsMessage<std::exception>(error));
  }
}

}  // namespace
}  // namespace penstock::planner
