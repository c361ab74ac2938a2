#include "planner/lower/schedule_times.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using enum PhaseKind;

using Orders = std::vector<std::vector<PhaseChoice>>;

// The orders of a policy for a training step.
Orders OrdersOf(const std::string& policy, int num_stages, int num_chunks, int num_microbatches) {
  const PolicyRegistry policies = BuiltinPolicies();
  Orders orders;
  for (int stage = 0; stage < num_stages; ++stage) {
    const StageContext context = {stage, num_stages, num_microbatches,
                                  std::vector<PhaseKinds>(num_chunks, {true, true, false})};
    orders.push_back(policies.Find(policy)->PlannedOrder(context));
  }
  return orders;
}

StagePhase PhaseAt(int virtual_stage, int num_stages, PhaseKind kind) {
  return {virtual_stage % num_stages, {virtual_stage / num_stages, kind}};
}

// What a pipeline's phases read: each forward the one before it, each backward the one after it and
// its forward.
PhaseReads PipelineReads(int num_stages, int num_chunks) {
  PhaseReads reads;
  const int count = num_stages * num_chunks;
  for (int v = 0; v < count; ++v) {
    const StagePhase forward = PhaseAt(v, num_stages, kForward);
    const StagePhase backward = PhaseAt(v, num_stages, kBackward);
    reads.insert({forward, backward});
    if (v + 1 == count) continue;
    reads.insert({forward, PhaseAt(v + 1, num_stages, kForward)});
    reads.insert({PhaseAt(v + 1, num_stages, kBackward), backward});
  }
  return reads;
}

TEST(ScheduleTimesTest, AStageHoldsWhatItsOrderLeavesInFlight) {
  for (const int m : {1, 3, 8}) {
    const auto one = ScheduleTimes::Of(OrdersOf("1f1b", 4, 1, m), m, PipelineReads(4, 1));
    const auto gpipe = ScheduleTimes::Of(OrdersOf("gpipe", 4, 1, m), m, PipelineReads(4, 1));
    ASSERT_TRUE(one.has_value() && gpipe.has_value());
    for (int s = 0; s < 4; ++s) {
      EXPECT_EQ(one->MostHeld(s, {{0, kForward}, {0, kBackward}}, std::nullopt),
                std::min(4 - s, m));
      EXPECT_EQ(gpipe->MostHeld(s, {{0, kForward}, {0, kBackward}}, std::nullopt), m);
    }
  }
}

TEST(ScheduleTimesTest, AValueFromAnotherStageIsHeldFromWhenItIsMade) {
  const auto times = ScheduleTimes::Of(OrdersOf("1f1b", 4, 1, 8), 8, PipelineReads(4, 1));
  ASSERT_TRUE(times.has_value());
  // Read by the next stage's forward, and by its backward too.
  EXPECT_LE(times->MostHeld(3, {{0, kForward}}, StagePhase{2, {0, kForward}}), 2);
  EXPECT_LE(times->MostHeld(3, {{0, kForward}, {0, kBackward}}, StagePhase{2, {0, kForward}}), 3);
  // Read by a backward alone: the forwards of stage 0 are four ahead of it.
  EXPECT_GE(times->MostHeld(3, {{0, kBackward}}, StagePhase{0, {0, kForward}}), 3);
  // With gpipe all forwards come first.
  const auto gpipe = ScheduleTimes::Of(OrdersOf("gpipe", 4, 1, 8), 8, PipelineReads(4, 1));
  ASSERT_TRUE(gpipe.has_value());
  EXPECT_EQ(gpipe->MostHeld(3, {{0, kBackward}}, StagePhase{0, {0, kForward}}), 8);
}

// Group 2 runs five forwards of its first chunk before one of the second, which reads what virtual
// stage 0 has made.
TEST(ScheduleTimesTest, AValueThatSkipsChunksIsHeldForARound) {
  const auto times = ScheduleTimes::Of(OrdersOf("1f1b", 3, 2, 5), 5, PipelineReads(3, 2));
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->MostHeld(2, {{1, kForward}}, StagePhase{0, {0, kForward}}), 5);
}

TEST(ScheduleTimesTest, WhatIsNotKnownNeedsRoomForAll) {
  const auto times = ScheduleTimes::Of(OrdersOf("1f1b", 2, 1, 6), 6, PipelineReads(2, 1));
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->MostHeld(1, {{0, kForward}}, StagePhase{0, {0, kWeight}}), 6);
  EXPECT_EQ(times->MostHeld(1, {{1, kForward}}, std::nullopt), 6);
}

TEST(ScheduleTimesTest, OrdersThatWaitForEachOtherHaveNone) {
  const Orders orders = {{{kForward, 0}, {kBackward, 0}, {kForward, 1}, {kBackward, 1}},
                         {{kForward, 0}, {kForward, 1}, {kBackward, 0}, {kBackward, 1}}};
  EXPECT_FALSE(ScheduleTimes::Of(orders, 2, PipelineReads(2, 1)).has_value());
  EXPECT_FALSE(ScheduleTimes::Of({{{kForward, 2}}}, 2, {}).has_value());
}

}  // namespace
}  // namespace penstock::planner
