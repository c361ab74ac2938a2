#include "planner/policy/stage_layouts.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/pipeline.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

TEST(StageLayoutsTest, TriesTheLayoutsOfTheBuiltInPolicies) {
  EXPECT_THAT(LayoutsToTry(0),
              ElementsAre(StageLayout{1, Placement::kLoop}, StageLayout{2, Placement::kLoop},
                          StageLayout{2, Placement::kVee}));
  EXPECT_THAT(LayoutsToTry(1), ElementsAre(StageLayout{1, Placement::kLoop}));
  EXPECT_THAT(LayoutsToTry(3),
              ElementsAre(StageLayout{3, Placement::kLoop}, StageLayout{3, Placement::kVee}));
}

TEST(StageLayoutsTest, APolicyWithALayoutOrdersNoOther) {
  const PolicyRegistry policies = BuiltinPolicies();
  const Policy& policy = *policies.Find("auto");
  const auto vee = WithLayout(policy, {2, Placement::kVee});
  EXPECT_EQ(vee->name(), "auto");
  EXPECT_EQ(ScheduleName(*vee), "auto (vee)");
  EXPECT_EQ(ScheduleName(policy), "auto");
  EXPECT_EQ(ScheduleName(*policies.Find("zb-v")), "zb-v");
  EXPECT_EQ(ScheduleName(*WithLayout(policy, {1, Placement::kLoop})), "auto");

  Pipeline pipeline = *MakePipeline(
      {.num_groups = 2, .num_microbatches = 4, .num_chunks = 2, .placement = Placement::kVee});
  pipeline.effort = 0;
  EXPECT_EQ(*PlanPipeline(*vee, pipeline), *PlanPipeline(policy, pipeline));
  pipeline = *MakePipeline({.num_groups = 2, .num_microbatches = 4, .num_chunks = 2});
  EXPECT_FALSE(PlanPipeline(*vee, pipeline).ok());
  EXPECT_FALSE(PlanPipeline(*vee, *MakePipeline({.num_groups = 2, .num_microbatches = 4})).ok());
}

}  // namespace
}  // namespace penstock::planner
