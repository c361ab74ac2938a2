#include <memory>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policies_internal.h"
#include "tests/support/policy_orders.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Pipeline Vee(int num_groups, int num_microbatches, double latency_s = 0) {
  return MakePipeline({.num_groups = num_groups,
                       .num_microbatches = num_microbatches,
                       .num_chunks = 2,
                       .placement = Placement::kVee,
                       .latency_s = latency_s})
      .value();
}

TEST(ZeroBubbleVTest, HasTheOrdersOfItsExample) {
  EXPECT_THAT(ToTexts(PlanPipeline(*internal::MakeZeroBubbleV(), Vee(2, 3)).value()),
              ElementsAre("F0 F1 F2 F0' B0' W0' F1' B1' W1' B0 W0 F2' B2' B1 W2' B2 W1 W2",
                          "F0 F0' F1 F1' B0' W0' F2 B0 W0 F2' B1' B1 B2' B2 W1' W1 W2' W2"));
}

TEST(ZeroBubbleVTest, HasNoBubbleWithEqualTimes) {
  const auto policy = internal::MakeZeroBubbleV();
  EXPECT_DOUBLE_EQ(RunPolicy(*policy, Vee(4, 8)).span_s, 24);
  EXPECT_DOUBLE_EQ(RunPolicy(*policy, Vee(4, 8)).makespan_s, 25.5);
  for (int groups = 1; groups <= 8; ++groups) {
    for (int microbatches = 2 * groups - 1; microbatches <= 20; ++microbatches) {
      SCOPED_TRACE(::testing::Message()
                   << groups << " groups, " << microbatches << " micro-batches");
      const Timeline timeline = RunPolicy(*policy, Vee(groups, microbatches));
      EXPECT_NEAR(timeline.span_s, 3 * microbatches, 1e-9);
    }
  }
}

// The spans of the authors' planner where a bubble remains. Times are those of a chunk.
TEST(ZeroBubbleVTest, HasTheSpansOfTheAuthorsPlanner) {
  struct Case {
    int num_groups;
    int num_microbatches;
    double f;
    double b;
    double w;
    double latency;
    double span;
  };
  for (const Case& c : {
           Case{4, 4, 1, 1, 1, 0, 27},
           Case{8, 8, 1, 1, 1, 0, 55},
           Case{6, 13, 3, 5, 2, 1, 316},
           Case{4, 8, 18.522, 18.086, 9.337, 0.601, 790.403},
           Case{8, 24, 18.522, 18.086, 9.337, 0.601, 2346.803},
           Case{8, 32, 29.802, 29.428, 19.530, 0.577, 5186.534},
           Case{16, 48, 11.347, 11.248, 8.132, 0.377, 3070.555},
       }) {
    const Pipeline pipeline = MakePipeline({.num_groups = c.num_groups,
                                            .num_microbatches = c.num_microbatches,
                                            .num_chunks = 2,
                                            .placement = Placement::kVee,
                                            .forward_s = 2 * c.f,
                                            .backward_s = 2 * c.b,
                                            .weight_s = 2 * c.w,
                                            .latency_s = c.latency})
                                  .value();
    EXPECT_NEAR(RunPolicy(*internal::MakeZeroBubbleV(), pipeline).span_s, c.span, 1e-6)
        << c.num_groups << " groups, " << c.num_microbatches << " micro-batches";
  }
}

TEST(ZeroBubbleVTest, KeepsNoMoreThanOneForwardOneBackward) {
  for (int groups = 1; groups <= 8; ++groups) {
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      const Timeline timeline = RunPolicy(*internal::MakeZeroBubbleV(), Vee(groups, microbatches));
      EXPECT_LE(LargestPeak(timeline), groups) << microbatches << " micro-batches";
    }
  }
}

TEST(ZeroBubbleVTest, KeepsWithinThePipelinesLimit) {
  for (const bool is_unequal : {false, true}) {
    for (int groups = 1; groups <= 8; ++groups) {
      for (const double limit : {1.5, 2.0, 3.0, 4.5, 7.0, 10.0}) {
        for (int microbatches = 1; microbatches <= 20; ++microbatches) {
          SCOPED_TRACE(::testing::Message() << groups << " groups, " << microbatches
                                            << " micro-batches, limit " << limit);
          Pipeline pipeline = Vee(groups, microbatches, 0.1);
          if (is_unequal) MakeUnequal(&pipeline);
          pipeline.memory_limit = limit;
          EXPECT_LE(LargestPeak(RunPolicy(*internal::MakeZeroBubbleV(), pipeline)), limit + 1e-6);
        }
      }
    }
  }
}

TEST(ZeroBubbleVTest, SaysThatAMicrobatchDoesNotFit) {
  Pipeline pipeline = Vee(2, 3);
  pipeline.memory_limit = 0.5;
  const absl::Status status = PlanPipeline(*internal::MakeZeroBubbleV(), pipeline).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "policy 'zb-v': no order keeps within 0.5 activations a group: group 0 keeps 1 of one "
            "micro-batch");
}

// A group that takes one and a half times as long has 72 s to compute, and waits hardly at all.
TEST(ZeroBubbleVTest, KeepsTheSlowestGroupBusy) {
  for (int slow_group = 0; slow_group < 4; ++slow_group) {
    Pipeline pipeline = Vee(4, 16);
    for (const int chunk : {0, 1}) {
      VirtualStage& stage = pipeline.stages[pipeline.StageOf(slow_group, chunk)];
      for (double& seconds : stage.seconds) seconds *= 1.5;
    }
    EXPECT_LE(RunPolicy(*internal::MakeZeroBubbleV(), pipeline).span_s, 72.5) << slow_group;
  }
}

TEST(ZeroBubbleVTest, RunsOnAllPipelines) {
  ExpectRunsOnAllPipelines(*internal::MakeZeroBubbleV(), Placement::kVee);
}

TEST(DualPipeVTest, HasTheOrdersOfTheExampleOfDualPipeOrder) {
  EXPECT_THAT(
      ToTexts(PlanPipeline(*internal::MakeDualPipeV(), Vee(2, 4)).value()),
      ElementsAre("F0 F1 F2 F0' B0' W0' F1' F3 B1' W1' F2' B0 W0 B2' W2' F3' B1 W1 B3' W3' B2 W2 "
                  "B3 W3",
                  "F0 F0' F1 F1' F2 B0' W0' F2' B0 W0 F3 B1' W1' F3' B1 W1 B2' W2' B2 W2 B3' B3 "
                  "W3' W3"));
}

// The micro-batches that do not exist are left out of the order above.
TEST(DualPipeVTest, OrdersFewMicrobatches) {
  EXPECT_THAT(ToTexts(PlanPipeline(*internal::MakeDualPipeV(), Vee(2, 1)).value()),
              ElementsAre("F0 F0' B0' W0' B0 W0", "F0 F0' B0' W0' B0 W0"));
}

// As DualPipe (bidirectional_policies_test.cc) with the same number of stages: twice as many as
// there are groups, each of half a group's work.
TEST(DualPipeVTest, HasTheBubbleAndPeakOfDualPipe) {
  for (int groups = 1; groups <= 8; ++groups) {
    for (int microbatches = 2 * groups; microbatches <= 20; ++microbatches) {
      const Timeline timeline = RunPolicy(*internal::MakeDualPipeV(), Vee(groups, microbatches));
      EXPECT_NEAR(timeline.makespan_s, 3 * microbatches + (groups - 1) * 0.5, 1e-9);
      EXPECT_DOUBLE_EQ(LargestPeak(timeline), (2 * groups + 1) / 2.0);
    }
  }
}

TEST(DualPipeVTest, RunsOnAllPipelines) {
  ExpectRunsOnAllPipelines(*internal::MakeDualPipeV(), Placement::kVee);
}

TEST(VeePoliciesTest, NeedAVeeOfTwoChunks) {
  const Pipeline loop =
      MakePipeline({.num_groups = 2, .num_microbatches = 4, .num_chunks = 2}).value();
  const Pipeline one_chunk = MakePipeline({.num_groups = 2, .num_microbatches = 4}).value();
  for (const auto make : {internal::MakeZeroBubbleV, internal::MakeDualPipeV}) {
    EXPECT_THAT(PlanPipeline(*make(), loop).status().message(),
                HasSubstr("needs the placement 'vee'"));
    EXPECT_THAT(PlanPipeline(*make(), one_chunk).status().message(), HasSubstr("orders 2 chunks"));
  }
}

}  // namespace
}  // namespace penstock::planner
