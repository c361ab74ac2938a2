#include "planner/cost/predict_step.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

void AddPhase(DevicePlan* device, Lane lane, bool per_microbatch, double seconds,
              ActorKind kind = ActorKind::kKernel) {
  PhasePlan phase;
  phase.lane = lane;
  phase.per_microbatch = per_microbatch;
  phase.first_actor = static_cast<uint32_t>(device->actors.size());
  phase.num_actors = 1;
  phase.predicted_s = seconds;
  device->phases.push_back(phase);
  device->actors.emplace_back().kind = kind;
}

// A stage each of one device.
Plan StagesOf(std::vector<DevicePlan> devices, uint32_t num_microbatches) {
  Plan plan;
  plan.num_microbatches = num_microbatches;
  for (uint32_t d = 0; d < devices.size(); ++d) plan.stages.push_back({{d}});
  plan.devices = std::move(devices);
  return plan;
}

TEST(PredictStepTest, LanesOfOneDeviceAddUp) {
  DevicePlan device;
  AddPhase(&device, Lane::kCompute, true, 3);
  AddPhase(&device, Lane::kCompute, true, 4);
  AddPhase(&device, Lane::kPerStep, false, 10);
  AddPhase(&device, Lane::kPerStep, true, 1);
  EXPECT_DOUBLE_EQ(PredictStepSeconds(StagesOf({device}, 4)), 4 * 7 + 10 + 4);
}

TEST(PredictStepTest, WhatFloatsCountsWhereItTakesLonger) {
  for (const double reduction : {2.0, 5.0}) {
    DevicePlan device;
    AddPhase(&device, Lane::kCompute, true, 3);
    AddPhase(&device, Lane::kFloating, true, reduction, ActorKind::kCollective);
    EXPECT_DOUBLE_EQ(PredictStepSeconds(StagesOf({device}, 2)), 2 * std::max(3.0, reduction));
    DevicePlan once;
    AddPhase(&once, Lane::kPerStep, false, 3);
    AddPhase(&once, Lane::kFloating, false, reduction, ActorKind::kCollective);
    EXPECT_DOUBLE_EQ(PredictStepSeconds(StagesOf({once}, 2)), std::max(3.0, reduction));
  }
}

TEST(PredictStepTest, APipelineFillsAndThenWaitsForItsSlowestStage) {
  DevicePlan first;
  AddPhase(&first, Lane::kCompute, true, 3);
  AddPhase(&first, Lane::kFloating, true, 1, ActorKind::kSend);
  AddPhase(&first, Lane::kFloating, true, 1, ActorKind::kRecv);
  DevicePlan second;
  AddPhase(&second, Lane::kCompute, true, 5);
  AddPhase(&second, Lane::kFloating, true, 1, ActorKind::kRecv);
  AddPhase(&second, Lane::kFloating, true, 1, ActorKind::kSend);
  AddPhase(&second, Lane::kPerStep, false, 7);
  EXPECT_DOUBLE_EQ(PredictStepSeconds(StagesOf({first, second}, 1)), 1 + 3 + 1 + 5 + 7);
  EXPECT_DOUBLE_EQ(PredictStepSeconds(StagesOf({first, second}, 4)), 1 + 3 + 1 + 5 + 3 * 5 + 7);
  // Transfers that take longer than the stages.
  second.phases[1].predicted_s = 9;
  EXPECT_DOUBLE_EQ(PredictStepSeconds(StagesOf({first, second}, 4)), 1 + 3 + 9 + 5 + 3 * 10 + 7);
}

TEST(PredictStepTest, OfAStageTheSlowestDeviceCounts) {
  DevicePlan fast;
  AddPhase(&fast, Lane::kCompute, true, 1);
  DevicePlan slow;
  AddPhase(&slow, Lane::kCompute, true, 2);
  Plan plan = StagesOf({fast, slow}, 3);
  plan.stages = {{{0, 1}}};
  EXPECT_DOUBLE_EQ(PredictStepSeconds(plan), 3 * 2);
}

}  // namespace
}  // namespace penstock::planner
