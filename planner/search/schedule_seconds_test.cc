#include "planner/search/schedule_seconds.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

// `num_groups` groups of one chunk, with edges between neighbours.
ScheduleInput Pipeline(int num_groups, int num_microbatches, double forward_s, double backward_s,
                       double transfer_s = 0) {
  ScheduleInput input;
  input.num_groups = num_groups;
  input.num_microbatches = num_microbatches;
  input.forward_s.assign(num_groups, forward_s);
  input.backward_s.assign(num_groups, backward_s);
  for (int s = 0; s + 1 < num_groups; ++s) {
    input.edges.push_back({s, s + 1, true, transfer_s});
    input.edges.push_back({s + 1, s, false, transfer_s});
  }
  return input;
}

std::vector<std::vector<PhaseChoice>> Orders(std::string_view policy, const ScheduleInput& input) {
  const PolicyRegistry policies = BuiltinPolicies();
  const int num_chunks = static_cast<int>(input.forward_s.size()) / input.num_groups;
  return *OrdersOf(*policies.Find(policy), input.num_groups, num_chunks, input.num_microbatches,
                   true);
}

TEST(ScheduleSecondsTest, TheExampleOfTheHeader) {
  ScheduleInput input = Pipeline(2, 1, 1, 2);
  input.forward_s = {1, 2};
  input.backward_s = {2, 4};
  const std::optional<ScheduleOutcome> outcome = RunSchedule(input, Orders("1f1b", input));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_THAT(outcome->end_s, ElementsAre(9, 7));
}

// Narayanan et al. 2021: (p - 1) of a forward and a backward phase, beside those of all
// micro-batches.
TEST(ScheduleSecondsTest, TheBubbleOf1f1bIsThatOfItsFormula) {
  const ScheduleInput input = Pipeline(4, 8, 1, 2);
  for (const std::string_view policy : {"1f1b", "gpipe"}) {
    const std::optional<ScheduleOutcome> outcome = RunSchedule(input, Orders(policy, input));
    ASSERT_TRUE(outcome.has_value());
    EXPECT_DOUBLE_EQ(outcome->end_s[0], (8 + 3) * 3) << policy;
  }
}

TEST(ScheduleSecondsTest, StagesKeepAsManyMicrobatchesAsTheyLeadBy) {
  const ScheduleInput input = Pipeline(4, 8, 1, 2);
  EXPECT_THAT(RunSchedule(input, Orders("1f1b", input))->in_flight, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(RunSchedule(input, Orders("gpipe", input))->in_flight, ElementsAre(8, 8, 8, 8));
}

// While one group computes alone, it has a core for itself; while both do, half of one.
TEST(ScheduleSecondsTest, GroupsOnOneCoreTakeTurns) {
  ScheduleInput input = Pipeline(2, 4, 1, 2);
  input.cores = {{{1, 1}, 1}};
  const std::optional<ScheduleOutcome> outcome = RunSchedule(input, Orders("1f1b", input));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_NEAR(outcome->end_s[0], 2 * 4 * 3, 1e-9);
}

TEST(ScheduleSecondsTest, EnoughCoresChangeNothing) {
  ScheduleInput input = Pipeline(3, 5, 1, 2, 0.25);
  const std::optional<ScheduleOutcome> apart = RunSchedule(input, Orders("1f1b", input));
  input.cores = {{{1, 1, 0}, 2}, {{0, 0, 1}, 1}};
  const std::optional<ScheduleOutcome> outcome = RunSchedule(input, Orders("1f1b", input));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->in_flight, apart->in_flight);
  for (int g = 0; g < 3; ++g) EXPECT_NEAR(outcome->end_s[g], apart->end_s[g], 1e-9) << g;
}

// The first forward and the last backward phase leave one of two cores idle: 3 s, in which 1.5 s of
// the work of both could be done.
TEST(ScheduleSecondsTest, APipelineFillsAndDrainsOnSharedCoresToo) {
  ScheduleInput input = Pipeline(4, 8, 1, 2);
  input.cores = {{{1, 1, 1, 1}, 2}};
  const double end = RunSchedule(input, Orders("1f1b", input))->end_s[0];
  EXPECT_GE(end, 4 * 8 * 3 / 2.0 + 1.5);
  EXPECT_LE(end, 4 * 8 * 3 / 2.0 + 3 * 3);
}

// 2 devices each for 2 groups on 2 cores: one group alone runs at full speed.
TEST(ScheduleSecondsTest, TheDevicesOfAGroupMaySlowEachOtherDown) {
  ScheduleInput input = Pipeline(2, 1, 1, 2);
  input.cores = {{{2, 2}, 2}};
  EXPECT_NEAR(RunSchedule(input, Orders("1f1b", input))->end_s[0], 6, 1e-9);
  input.cores = {{{2, 2}, 1}};
  EXPECT_NEAR(RunSchedule(input, Orders("1f1b", input))->end_s[0], 12, 1e-9);
}

TEST(ScheduleSecondsTest, ChunksShortenTheBubble) {
  ScheduleInput input = Pipeline(4, 8, 1, 2);
  const double plain = RunSchedule(input, Orders("1f1b", input))->end_s[0];
  ScheduleInput chunks = Pipeline(8, 8, 0.5, 1);
  chunks.num_groups = 4;
  const double interleaved = RunSchedule(chunks, Orders("1f1b", chunks))->end_s[0];
  EXPECT_DOUBLE_EQ(plain - 24, 9);
  EXPECT_DOUBLE_EQ(interleaved - 24, 4.5);
}

// With p - s micro-batches in flight, a stage waits for what travels to the later stages and back.
TEST(ScheduleSecondsTest, TransfersDelayPhases) {
  const ScheduleInput input = Pipeline(2, 16, 1, 2, 0.25);
  const double end = RunSchedule(input, Orders("1f1b", input))->end_s[0];
  // A round of the first stage, which has two in flight, takes 3 + 3 + 0.5 for two micro-batches.
  EXPECT_DOUBLE_EQ(end, 16 / 2 * 6.5 + 3);
  EXPECT_GT(end, RunSchedule(Pipeline(2, 16, 1, 2), Orders("1f1b", input))->end_s[0]);
}

TEST(ScheduleSecondsTest, AStageWaitsForWhatItNeedsBeforeTheStep) {
  ScheduleInput input = Pipeline(2, 1, 1, 2);
  input.ready_s = {0, 10};
  EXPECT_DOUBLE_EQ(RunSchedule(input, Orders("1f1b", input))->end_s[1], 13);
}

TEST(ScheduleSecondsTest, OrdersThatWaitForEachOtherAreRefused) {
  const ScheduleInput input = Pipeline(1, 2, 1, 1);
  ScheduleInput crossed = Pipeline(2, 2, 1, 1);
  // Group 1 wants micro-batch 1 first, and group 0 has the backward of 0 before its forward of 1.
  const std::vector<std::vector<PhaseChoice>> orders = {{{PhaseKind::kForward, 0},
                                                         {PhaseKind::kBackward, 0},
                                                         {PhaseKind::kForward, 1},
                                                         {PhaseKind::kBackward, 1}},
                                                        {{PhaseKind::kForward, 1},
                                                         {PhaseKind::kBackward, 1},
                                                         {PhaseKind::kForward, 0},
                                                         {PhaseKind::kBackward, 0}}};
  EXPECT_FALSE(RunSchedule(crossed, orders).has_value());
  EXPECT_TRUE(RunSchedule(input, Orders("1f1b", input)).has_value());
}

}  // namespace
}  // namespace penstock::planner
