#include "actors/cluster/plan_slice.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/check_plan.h"
#include "planner/plan/plan_io.h"
#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;

// Three devices, each with a kernel, a state and a fetch of its own.
planner::Plan ThreeDevices() {
  testing::EnginePlanBuilder builder;
  for (uint32_t d = 0; d < 3; ++d) {
    builder.AddDevice();
    const uint32_t state = builder.AddState(d, "w" + std::to_string(d));
    const uint32_t reg = builder.AddRegister(d);
    builder.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t sum = builder.AddKernel(d, "sum", "t.sum", {state}, {reg});
    const uint32_t fetch = builder.AddFetch(d, "y" + std::to_string(d), reg);
    builder.AddChannel(d, sum, fetch);
  }
  return builder.Build();
}

TEST(PlanSliceTest, KeepsItsDevicesAndEmptiesTheOthers) {
  const planner::Plan plan = ThreeDevices();
  ASSERT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
  const planner::Plan slice = SlicePlan(plan, 1, 1);
  ASSERT_EQ(slice.devices.size(), 3u);
  EXPECT_TRUE(slice.devices[0].actors.empty());
  EXPECT_TRUE(slice.devices[2].channels.empty());
  EXPECT_EQ(slice.devices[0].phases.size(), 1u);
  EXPECT_EQ(slice.devices[1].actors.size(), plan.devices[1].actors.size());
  EXPECT_EQ(slice.kernels.size(), 2u);
  EXPECT_EQ(slice.kernels[slice.devices[1].actors[0].kernel],
            plan.kernels[plan.devices[1].actors[0].kernel]);
  EXPECT_EQ(slice.states, plan.states);
  // Whole, all is kept, up to the kernels' order.
  EXPECT_EQ(SlicePlan(plan, 0, 3).kernels.size(), plan.kernels.size());
}

TEST(PlanSliceTest, IsCheckedAsAPart) {
  const planner::Plan slice = SlicePlan(ThreeDevices(), 1, 2);
  EXPECT_TRUE(CheckPlanSlice(slice, 1, 2).ok()) << CheckPlanSlice(slice, 1, 2);
  EXPECT_FALSE(CheckPlan(slice).ok());
  EXPECT_FALSE(CheckPlanSlice(slice, 1, 3).ok());
  EXPECT_FALSE(CheckPlanSlice(slice, 1, 0).ok());
  EXPECT_FALSE(CheckPlanSlice(slice, 0xffffffff, 2).ok());

  planner::Plan bad = slice;
  bad.states[1].placements[0].reg = 77;
  EXPECT_FALSE(CheckPlanSlice(bad, 1, 2).ok());
  bad = slice;
  bad.devices[2].actors[0].inputs[0].reg = 77;
  EXPECT_FALSE(CheckPlanSlice(bad, 1, 2).ok());
}

TEST(PlanSliceTest, SurvivesTheFile) {
  const planner::Plan slice = SlicePlan(ThreeDevices(), 0, 1);
  const absl::StatusOr<std::string> bytes = planner::PlanToBytes(slice);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const absl::StatusOr<planner::Plan> read = planner::PlanFromBytes(*bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, slice);
}

}  // namespace
}  // namespace penstock::actors
