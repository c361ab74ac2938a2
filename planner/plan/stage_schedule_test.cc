#include "planner/plan/stage_schedule.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PhaseChoice kF0 = {PhaseKind::kForward, 0};
constexpr PhaseChoice kF1 = {PhaseKind::kForward, 1};
constexpr PhaseChoice kB0 = {PhaseKind::kBackward, 0};
constexpr PhaseChoice kB1 = {PhaseKind::kBackward, 1};

// Two stages of one device each; the second has nothing to order.
Plan TwoStages() {
  Plan plan;
  plan.num_microbatches = 2;
  plan.stages = {{{0}}, {{1}}};
  plan.devices.resize(2);
  for (const PhaseKind kind : {PhaseKind::kForward, PhaseKind::kBackward}) {
    PhasePlan phase;
    phase.kind = kind;
    plan.devices[0].phases.push_back(phase);
  }
  PhasePlan update;
  update.kind = PhaseKind::kAfterStep;
  update.lane = Lane::kPerStep;
  plan.devices[1].phases.push_back(update);
  return plan;
}

std::vector<PhaseChoice> Taken(StageSchedule& schedule) {
  std::vector<PhaseChoice> choices;
  while (const auto choice = schedule.scheduler->Next(StageView())) choices.push_back(*choice);
  return choices;
}

TEST(StageScheduleTest, AContextTellsWhatTheDevicesHave) {
  const Plan plan = TwoStages();
  const StageContext first = StageContextOf(plan, 0);
  EXPECT_EQ(first.stage, 0);
  EXPECT_EQ(first.num_stages, 2);
  EXPECT_EQ(first.num_microbatches, 2);
  EXPECT_THAT(first.chunks, ElementsAre(ElementsAre(true, true, false)));
  EXPECT_FALSE(StageContextOf(plan, 1).has_choices());
}

TEST(StageScheduleTest, ThePlansOrderNeedsNoPolicy) {
  Plan plan = TwoStages();
  plan.stages[0].order = {kF0, kF1, kB0, kB1};
  absl::StatusOr<StageSchedule> schedule = ScheduleOf(plan, 0, {});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->order, plan.stages[0].order);
  EXPECT_EQ(Taken(*schedule), plan.stages[0].order);
  // It is preferred to that of the policy.
  const PolicyRegistry policies = BuiltinPolicies();
  schedule = ScheduleOf(plan, 0, policies);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->order, plan.stages[0].order);
}

TEST(StageScheduleTest, WithoutAnOrderThePolicyIsAsked) {
  Plan plan = TwoStages();
  plan.policy = "gpipe";
  absl::StatusOr<StageSchedule> schedule = ScheduleOf(plan, 0, BuiltinPolicies());
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_THAT(Taken(*schedule), ElementsAre(kF0, kF1, kB0, kB1));
  schedule = ScheduleOf(plan, 0, {});
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(schedule.status().message()),
              HasSubstr("there is no policy 'gpipe'; known: "));
  // There is nothing to ask about the second stage.
  schedule = ScheduleOf(plan, 1, {});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->scheduler, nullptr);
}

TEST(StageScheduleTest, OrdersRunEveryPhaseOnce) {
  Plan plan = TwoStages();
  const auto error_of = [&](std::vector<PhaseChoice> order) {
    plan.stages[0].order = std::move(order);
    return std::string(ScheduleOf(plan, 0, {}).status().message());
  };
  EXPECT_EQ(error_of({kF0, kB0, kF1, kB1}), "");
  EXPECT_THAT(error_of({kF1, kF0, kB0, kB1}), HasSubstr("F of micro-batch 1, expected"));
  EXPECT_THAT(error_of({kF0, kF1, kB0}), HasSubstr("1 phase of kind B, expected 2"));
  EXPECT_THAT(error_of({kF0, kF1, kB0, kB1, kB1}), HasSubstr("B of micro-batch 1, expected"));
  EXPECT_THAT(error_of({{PhaseKind::kWeight, 0}}), HasSubstr("kind W"));
  EXPECT_THAT(error_of({{PhaseKind::kTransfer, 0}}), HasSubstr("kind transfer"));
  EXPECT_THAT(error_of({kF0, {PhaseKind::kForward, 1, 1}}), HasSubstr("kind F of chunk 1"));
  PhasePlan later;
  later.chunk = 1;
  plan.devices[0].phases.push_back(later);
  EXPECT_THAT(error_of({kF0, kF1, kB0, kB1}), HasSubstr("0 phases of kind F of chunk 1"));
  const PhaseChoice later0 = {PhaseKind::kForward, 0, 1};
  const PhaseChoice later1 = {PhaseKind::kForward, 1, 1};
  EXPECT_EQ(error_of({kF0, kF1, later0, later1, kB0, kB1}), "");
}

}  // namespace
}  // namespace penstock::planner
