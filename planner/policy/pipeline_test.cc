#include "planner/policy/pipeline.h"

#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/least_times.h"
#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A chain of `num_groups` groups with unsplit backward phases, of 1 s and 2 s.
Pipeline Chain(int num_groups, int num_microbatches, int num_chunks = 1, double transfer_s = 0) {
  Pipeline pipeline = *MakePipeline({.num_groups = num_groups,
                                     .num_microbatches = num_microbatches,
                                     .num_chunks = num_chunks,
                                     .splits_backward = false});
  for (PipelineEdge& edge : pipeline.edges) edge.transfer_s = transfer_s;
  return pipeline;
}

Timeline TimelineOf(std::string_view policy, const Pipeline& pipeline) {
  const PolicyRegistry policies = BuiltinPolicies();
  return *RunPipeline(pipeline, *PlanPipeline(*policies.Find(policy), pipeline));
}

TEST(PipelineTest, TheExampleOfTheHeader) {
  Pipeline pipeline = Chain(2, 1);
  for (PipelineEdge& edge : pipeline.edges) edge.latency_s = 0.5;
  const Timeline timeline = TimelineOf("1f1b", pipeline);
  const PhaseRun& last = timeline.groups[0].back();
  EXPECT_EQ(last.phase, (PhaseChoice{PhaseKind::kBackward, 0}));
  EXPECT_DOUBLE_EQ(last.begin_s, 5);
  EXPECT_DOUBLE_EQ(timeline.groups[1].front().begin_s, 1.5);
  EXPECT_DOUBLE_EQ(timeline.makespan_s, 7);
  EXPECT_DOUBLE_EQ(timeline.span_s, 7);
}

// Narayanan et al. 2021: (p - 1) of a forward and a backward phase, beside those of all
// micro-batches.
TEST(PipelineTest, TheBubbleOf1f1bIsThatOfItsFormula) {
  for (const std::string_view policy : {"1f1b", "gpipe"}) {
    const Timeline timeline = TimelineOf(policy, Chain(4, 8));
    EXPECT_DOUBLE_EQ(timeline.makespan_s, (8 + 3) * 3) << policy;
    EXPECT_DOUBLE_EQ(BubbleOf(timeline), 9.0 / 33) << policy;
  }
}

TEST(PipelineTest, StagesKeepAsManyMicrobatchesAsTheyLeadBy) {
  EXPECT_THAT(TimelineOf("1f1b", Chain(4, 8)).peak_activations, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(TimelineOf("gpipe", Chain(4, 8)).peak_activations, ElementsAre(8, 8, 8, 8));
}

// While one group computes alone, it has a core for itself; while both do, half of one.
TEST(PipelineTest, GroupsOnOneCoreTakeTurns) {
  Pipeline pipeline = Chain(2, 4);
  pipeline.cores = {{{1, 1}, 1}};
  EXPECT_NEAR(TimelineOf("1f1b", pipeline).makespan_s, 2 * 4 * 3, 1e-9);
}

TEST(PipelineTest, EnoughCoresChangeNothing) {
  Pipeline pipeline = Chain(3, 5, 1, 0.25);
  const Timeline apart = TimelineOf("1f1b", pipeline);
  pipeline.cores = {{{1, 1, 0}, 2}, {{0, 0, 1}, 1}};
  const Timeline shared = TimelineOf("1f1b", pipeline);
  EXPECT_EQ(shared.peak_activations, apart.peak_activations);
  for (int g = 0; g < 3; ++g) {
    EXPECT_NEAR(shared.groups[g].back().end_s, apart.groups[g].back().end_s, 1e-9) << g;
  }
}

// The first forward and the last backward phase leave one of two cores idle: 3 s, in which 1.5 s of
// the work of both could be done.
TEST(PipelineTest, APipelineFillsAndDrainsOnSharedCoresToo) {
  Pipeline pipeline = Chain(4, 8);
  pipeline.cores = {{{1, 1, 1, 1}, 2}};
  const double makespan_s = TimelineOf("1f1b", pipeline).makespan_s;
  EXPECT_GE(makespan_s, 4 * 8 * 3 / 2.0 + 1.5);
  EXPECT_LE(makespan_s, 4 * 8 * 3 / 2.0 + 3 * 3);
}

// 2 devices each for 2 groups on 2 cores: one group alone runs at full speed.
TEST(PipelineTest, TheDevicesOfAGroupMaySlowEachOtherDown) {
  Pipeline pipeline = Chain(2, 1);
  pipeline.cores = {{{2, 2}, 2}};
  EXPECT_NEAR(TimelineOf("1f1b", pipeline).makespan_s, 6, 1e-9);
  pipeline.cores = {{{2, 2}, 1}};
  EXPECT_NEAR(TimelineOf("1f1b", pipeline).makespan_s, 12, 1e-9);
}

// 2 devices on a core, each of which needs it a quarter of the time: they need it together.
TEST(PipelineTest, WhatNeedsNoCoreIsNotSlowedDown) {
  Pipeline pipeline = Chain(1, 4);
  pipeline.cores = {{{2}, 1}};
  pipeline.stages[0].core_shares = {0.25, 0.25, 0.25};
  EXPECT_NEAR(TimelineOf("1f1b", pipeline).makespan_s, 4 * 3 * 1.25, 1e-9);
}

// With p - s micro-batches in flight, a stage waits for what travels to the later stages and back.
TEST(PipelineTest, TransfersDelayPhases) {
  // A round of the first stage, which has two in flight, takes 3 + 3 + 0.5 for two micro-batches.
  EXPECT_DOUBLE_EQ(TimelineOf("1f1b", Chain(2, 16, 1, 0.25)).makespan_s, 16 / 2 * 6.5 + 3);
}

// Three values of 2 s each leave group 0 at 1, 2 and 3 s.
TEST(PipelineTest, TransfersOfAnEdgeFollowEachOther) {
  Pipeline pipeline = Chain(2, 3);
  for (VirtualStage& stage : pipeline.stages) stage.kinds = {true, false, false};
  for (PipelineEdge& edge : pipeline.edges) edge.transfer_s = 2;
  EXPECT_DOUBLE_EQ(TimelineOf("gpipe", pipeline).makespan_s, 1 + 3 * 2 + 1);
  for (PipelineEdge& edge : pipeline.edges) std::swap(edge.transfer_s, edge.latency_s);
  EXPECT_DOUBLE_EQ(TimelineOf("gpipe", pipeline).makespan_s, 3 + 2 + 1);
}

TEST(PipelineTest, AStageWaitsForWhatItNeedsBeforeTheStep) {
  Pipeline pipeline = Chain(2, 1);
  pipeline.stages[1].ready_s = 10;
  EXPECT_DOUBLE_EQ(TimelineOf("1f1b", pipeline).groups[1].back().end_s, 13);
}

TEST(PipelineTest, WeightGradientsKeepActivations) {
  const Pipeline pipeline = *MakePipeline({.num_groups = 1, .num_microbatches = 2});
  const PipelineOrders orders = {{{PhaseKind::kForward, 0},
                                  {PhaseKind::kBackward, 0},
                                  {PhaseKind::kForward, 1},
                                  {PhaseKind::kBackward, 1},
                                  {PhaseKind::kWeight, 0},
                                  {PhaseKind::kWeight, 1}}};
  EXPECT_THAT(RunPipeline(pipeline, orders)->peak_activations, ElementsAre(2));
}

TEST(PipelineTest, VeesTurnOnTheLastGroup) {
  const StagePlacement vee = {3, 2, Placement::kVee};
  EXPECT_EQ(vee.GroupOf(2), 2);
  EXPECT_EQ(vee.GroupOf(3), 2);
  EXPECT_EQ(vee.GroupOf(5), 0);
  EXPECT_EQ(vee.StageOf(0, 1), 5);
  EXPECT_EQ(vee.ChunkOf(4), 1);
  const StagePlacement loop = {3, 2, Placement::kLoop};
  EXPECT_EQ(loop.GroupOf(3), 0);
  EXPECT_EQ(loop.StageOf(0, 1), 3);
}

TEST(PipelineTest, OrdersThatWaitForEachOtherAreNamed) {
  // Group 1 wants micro-batch 1 first, and group 0 has the backward of 0 before its forward of 1.
  const PipelineOrders orders = {{{PhaseKind::kForward, 0},
                                  {PhaseKind::kBackward, 0},
                                  {PhaseKind::kForward, 1},
                                  {PhaseKind::kBackward, 1}},
                                 {{PhaseKind::kForward, 0},
                                  {PhaseKind::kForward, 1},
                                  {PhaseKind::kBackward, 0},
                                  {PhaseKind::kBackward, 1}}};
  const absl::Status status = RunPipeline(Chain(2, 2), orders).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("group 0 waits at B0 for B0 of virtual stage 1"));
  EXPECT_THAT(status.message(), HasSubstr("group 1 waits at F1 for F1 of virtual stage 0"));
}

// The example of least_times.h; and 1f1b is as fast as an order of such phases can be.
TEST(PipelineTest, GroupsEndNoEarlierThanTheirWorkAllows) {
  UniformPipeline uniform = {.num_groups = 2, .num_microbatches = 3, .splits_backward = false};
  const LeastTimes whole = LeastTimesOf(*MakePipeline(uniform));
  EXPECT_THAT(whole.end_s, ::testing::ElementsAre(9, 10));
  EXPECT_EQ(whole.makespan_s, 12);
  uniform.splits_backward = true;
  EXPECT_EQ(LeastTimesOf(*MakePipeline(uniform)).makespan_s, 10);

  const PolicyRegistry policies = BuiltinPolicies();
  for (int groups = 1; groups <= 5; ++groups) {
    const Pipeline pipeline = *MakePipeline(
        {.num_groups = groups, .num_microbatches = 7, .backward_s = 1.5, .splits_backward = false});
    const PipelineOrders orders = *PlanPipeline(*policies.Find("1f1b"), pipeline);
    EXPECT_DOUBLE_EQ(RunPipeline(pipeline, orders)->makespan_s, LeastTimesOf(pipeline).makespan_s);
  }
}

TEST(PipelineTest, WrongNumbersAreErrors) {
  EXPECT_THAT(MakePipeline({.num_groups = 0}).status().message(), HasSubstr("stages: 0"));
  EXPECT_THAT(MakePipeline({.forward_s = -1}).status().message(), HasSubstr("a time of -1"));
  EXPECT_THAT(MakePipeline({.num_groups = 3,
                            .num_microbatches = 2,
                            .num_chunks = 2,
                            .placement = Placement::kBidirectional})
                  .status()
                  .message(),
              HasSubstr("a bidirectional pipeline needs 2 chunks"));
  EXPECT_THAT(RunPipeline(Chain(2, 1), {{}}).status().message(),
              HasSubstr("1 orders for 2 groups"));
}

}  // namespace
}  // namespace penstock::planner
