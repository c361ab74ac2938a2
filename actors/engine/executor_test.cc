// Executors and stages on one thread, polled in random order, on CPU devices and on emulated ones,
// which launch ahead and whose memory the host cannot touch.

#include "actors/engine/executor.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/engine_harness.h"
#include "tests/support/engine_plan.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_policies.h"

namespace penstock::actors {
namespace {

using planner::Lane;
using planner::PhaseKind;
using testing::DynamicPolicy;
using ::testing::ElementsAre;
using testing::EngineHarness;
using testing::EnginePlanBuilder;
using testing::EngineTestKernels;
using testing::HarnessOptions;
using ::testing::HasSubstr;
using testing::kWidth;

// Sanitizers take their time, and ThreadSanitizer has nothing to find on one thread.
constexpr int kSeeds = testing::kHasSanitizer ? 50 : 1000;

class ExecutorTest : public ::testing::Test {
 protected:
  std::unique_ptr<EngineHarness> Start(const planner::Plan& plan, const HarnessOptions& options) {
    auto harness = EngineHarness::Create(plan, options, kernels_, policies_);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return harness.ok() ? *std::move(harness) : nullptr;
  }

  // Both devices, all kinds of turns, many seeds; `check` gets a fresh harness and the seed.
  template <typename Check>
  void ForSeeds(const planner::Plan& plan, const Check& check, int seeds = kSeeds) {
    for (int seed = 0; seed < seeds; ++seed) {
      HarnessOptions options;
      options.seed = seed;
      options.is_emulated = seed % 2 == 1;
      options.has_stream_collectives = seed % 4 == 3;
      options.has_stream_messages = seed % 8 == 7;
      options.acts_per_poll = seed % 3 == 0 ? 1 : 256;
      options.firing_seed = seed % 5 < 2 ? 0 : seed;
      std::unique_ptr<EngineHarness> harness = Start(plan, options);
      ASSERT_NE(harness, nullptr);
      check(*harness);
      if (HasFailure()) {
        ADD_FAILURE() << "seed " << seed << "\n" << StrJoin(harness->Describe(), "\n");
        return;
      }
    }
  }

  kernels::KernelRegistry kernels_ = EngineTestKernels();
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
};

// [M, kWidth] with element (m, i) = base + 10 m + i.
Tensor FeedOf(int64_t microbatches, double base) {
  Tensor feed({DType::kF64, {microbatches, kWidth}});
  for (int64_t m = 0; m < microbatches; ++m) {
    for (int64_t i = 0; i < kWidth; ++i) {
      feed.As<double>()[m * kWidth + i] = base + 10 * m + i;
    }
  }
  return feed;
}

double At(const Tensor& tensor, int64_t row, int64_t i) {
  return tensor.As<double>()[row * kWidth + i];
}

TEST_F(ExecutorTest, ChainWithinOnePhase) {
  EnginePlanBuilder b(2);
  const uint32_t d = b.AddDevice();
  const uint32_t x = b.AddRegister(d);
  const uint32_t y = b.AddRegister(d);
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t feed = b.AddFeed(d, "x", x);
  const uint32_t f = b.AddKernel(d, "f", "t.affine", {x}, {y}, {{"scale", 2.0}, {"shift", 1.0}});
  const uint32_t fetch = b.AddFetch(d, "y", y);
  b.AddChannel(d, feed, f);
  b.AddChannel(d, f, fetch);
  ForSeeds(b.Build(), [](EngineHarness& harness) {
    for (int step = 0; step < 3; ++step) harness.Submit({FeedOf(2, 100 * step)});
    ASSERT_TRUE(harness.RunUntilDone());
    for (int step = 0; step < 3; ++step) {
      for (int m = 0; m < 2; ++m) {
        EXPECT_EQ(At(harness.fetched(step, 0), m, 3), 2 * (100 * step + 10 * m + 3) + 1);
      }
    }
  });
}

TEST_F(ExecutorTest, DiamondWaitsForBothSides) {
  EnginePlanBuilder b;
  const uint32_t d = b.AddDevice();
  std::vector<uint32_t> r;
  for (int i = 0; i < 4; ++i) r.push_back(b.AddRegister(d));
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t a0 = b.AddKernel(d, "top", "t.iota", {}, {r[0]});
  const uint32_t a1 = b.AddKernel(d, "left", "t.affine", {r[0]}, {r[1]}, {{"scale", 3.0}});
  const uint32_t a2 = b.AddKernel(d, "right", "t.affine", {r[0]}, {r[2]}, {{"shift", 7.0}});
  const uint32_t a3 = b.AddKernel(d, "bottom", "t.sum", {r[1], r[2]}, {r[3]});
  const uint32_t a4 = b.AddFetch(d, "out", r[3]);
  b.AddChannel(d, a0, a1);
  b.AddChannel(d, a0, a2);
  b.AddChannel(d, a1, a3);
  b.AddChannel(d, a2, a3);
  b.AddChannel(d, a3, a4);
  ForSeeds(b.Build(), [](EngineHarness& harness) {
    for (int step = 0; step < 4; ++step) harness.Submit({});
    ASSERT_TRUE(harness.RunUntilDone());
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(At(harness.fetched(step, 0), 0, 2), 4 * (100 * step + 2) + 7);
    }
  });
}

// One device that trains: F stashes k micro-batches for B, B accumulates a gradient over M, the
// update adds it to the state that the next step's F reads.
planner::Plan ExecutorTrainingPlan(uint32_t microbatches, uint32_t credits,
                                   const std::string& policy) {
  EnginePlanBuilder b(microbatches, policy);
  const uint32_t d = b.AddDevice();
  const uint32_t w = b.AddState(d, "w", "ones");
  const uint32_t x = b.AddRegister(d);
  const uint32_t stash = b.AddRegister(d, credits);
  const uint32_t grad = b.AddRegister(d, 1, false);
  const uint32_t m = microbatches;
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t feed = b.AddFeed(d, "x", x);
  const uint32_t f = b.AddKernel(d, "f", "t.sum", {w, x}, {stash});
  b.AddChannel(d, feed, f);
  b.BeginPhase(d, "B", PhaseKind::kBackward);
  const uint32_t bwd = b.AddKernel(d, "b", "t.sum", {stash}, {grad}, {}, true);
  b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t fetch = b.AddFetch(d, "grad", grad);
  const uint32_t update = b.AddKernel(d, "update", "t.bump", {w, grad}, {w});
  b.AddChannel(d, f, bwd, 1, 1, credits);
  b.AddChannel(d, bwd, fetch, 1, m, m);
  b.AddChannel(d, bwd, update, 1, m, m);
  b.AddChannel(d, update, f, m, 1, m, m);
  return b.Build();
}

TEST_F(ExecutorTest, TrainingStepAccumulatesAndUpdates) {
  for (const char* policy : {"gpipe", "1f1b"}) {
    const uint32_t credits = std::string(policy) == "gpipe" ? 3 : 1;
    // The harness does not initialise states: w begins as 0.
    ForSeeds(
        ExecutorTrainingPlan(3, credits, policy),
        [](EngineHarness& harness) {
          for (int step = 0; step < 3; ++step) harness.Submit({FeedOf(3, 1000 * step)});
          ASSERT_TRUE(harness.RunUntilDone());
          double w = 0;
          for (int step = 0; step < 3; ++step) {
            double grad = 0;
            for (int m = 0; m < 3; ++m) grad += w + 1000 * step + 10 * m + 1;
            EXPECT_EQ(At(harness.fetched(step, 0), 0, 1), grad);
            w += grad;
          }
          EXPECT_EQ(harness.Read(0, 0)[1], w);
        },
        kSeeds / 2);
  }
}

TEST_F(ExecutorTest, TooFewCreditsForThePolicyStopAndAreNamed) {
  HarnessOptions options;
  std::unique_ptr<EngineHarness> harness = Start(ExecutorTrainingPlan(3, 2, "gpipe"), options);
  ASSERT_NE(harness, nullptr);
  harness->Submit({FeedOf(3, 0)});
  EXPECT_FALSE(harness->RunUntilDone());
  const std::string report = StrJoin(harness->Describe(), "\n");
  EXPECT_THAT(report,
              HasSubstr("phase 'F', step 1, micro-batch 2, misses credits from 'b' 0 of 1"));
  EXPECT_THAT(report, HasSubstr("phase 'B', step 1, micro-batch 0, could run; its stage chose F2"));
  EXPECT_THAT(report, HasSubstr("phase 'update', step 1, misses tokens from 'b' 0 of 3"));
}

// A pipeline of `stages` devices: x + 1 at each stage forwards, doubled at each backwards, sends
// and receives in floating phases with two credits.
planner::Plan PipelinePlan(uint32_t stages, uint32_t microbatches, const std::string& policy) {
  EnginePlanBuilder b(microbatches, policy);
  for (uint32_t s = 0; s < stages; ++s) b.AddDevice(s);
  uint32_t transfer_in = 0;
  std::vector<uint32_t> forward_actor(stages), stash(stages);
  constexpr uint32_t kCredits = 2;
  for (uint32_t s = 0; s < stages; ++s) {
    const uint32_t in = b.AddRegister(s, kCredits);
    stash[s] = b.AddRegister(s, microbatches);
    uint32_t recv = 0;
    if (s > 0) {
      b.BeginPhase(s, "recv x", PhaseKind::kTransfer, Lane::kFloating);
      recv = b.AddRecv(s, StrCat("recv.x", s), in, transfer_in);
    }
    b.BeginPhase(s, "F", PhaseKind::kForward);
    uint32_t feed = 0;
    if (s == 0) feed = b.AddFeed(s, "x", in);
    forward_actor[s] =
        b.AddKernel(s, StrCat("f", s), "t.affine", {in}, {stash[s]}, {{"shift", 1.0}});
    if (s == 0) {
      b.AddChannel(s, feed, forward_actor[s]);
    } else {
      b.AddChannel(s, recv, forward_actor[s], 1, 1, kCredits);
    }
    if (s + 1 < stages) {
      b.BeginPhase(s, "send x", PhaseKind::kTransfer, Lane::kFloating);
      const uint32_t send = b.AddSend(s, StrCat("send.x", s), stash[s], s + 1);
      transfer_in = b.last_transfer();
      b.AddChannel(s, forward_actor[s], send, 1, 1, microbatches);
    }
  }
  for (uint32_t s = stages; s-- > 0;) {
    uint32_t in = stash[s];
    uint32_t recv = 0;
    if (s + 1 < stages) {
      in = b.AddRegister(s, kCredits);
      b.BeginPhase(s, "recv g", PhaseKind::kTransfer, Lane::kFloating);
      recv = b.AddRecv(s, StrCat("recv.g", s), in, transfer_in);
    }
    const uint32_t out = b.AddRegister(s, kCredits);
    b.BeginPhase(s, "B", PhaseKind::kBackward);
    const uint32_t bwd = b.AddKernel(s, StrCat("b", s), "t.sum", {in, stash[s]}, {out});
    b.AddChannel(s, forward_actor[s], bwd, 1, 1, microbatches);
    if (s + 1 < stages) b.AddChannel(s, recv, bwd, 1, 1, kCredits);
    if (s > 0) {
      b.BeginPhase(s, "send g", PhaseKind::kTransfer, Lane::kFloating);
      const uint32_t send = b.AddSend(s, StrCat("send.g", s), out, s - 1);
      transfer_in = b.last_transfer();
      b.AddChannel(s, bwd, send, 1, 1, kCredits);
    } else {
      const uint32_t fetch = b.AddFetch(s, "g", out);
      b.AddChannel(s, bwd, fetch);
    }
  }
  return b.Build();
}

// The stash of stage s holds x + s + 1; the gradient leaves the last stage as twice its stash.
double PipelineReference(uint32_t stages, double x) {
  double gradient = x + stages;
  for (uint32_t s = stages; s-- > 0;) gradient += x + s + 1;
  return gradient;
}

TEST_F(ExecutorTest, PipelineOverTransfers) {
  for (const char* policy : {"gpipe", "1f1b"}) {
    ForSeeds(
        PipelinePlan(3, 4, policy),
        [](EngineHarness& harness) {
          for (int step = 0; step < 3; ++step) harness.Submit({FeedOf(4, 100 * step)});
          ASSERT_TRUE(harness.RunUntilDone());
          for (int step = 0; step < 3; ++step) {
            for (int m = 0; m < 4; ++m) {
              for (int i = 0; i < kWidth; ++i) {
                ASSERT_EQ(At(harness.fetched(step, 0), m, i),
                          PipelineReference(3, 100 * step + 10 * m + i));
              }
            }
          }
        },
        kSeeds / 2);
  }
}

// Sends wait for their receives, on streams. The host has no transport there.
TEST_F(ExecutorTest, StagesExchangeMessagesThemselves) {
  for (const char* policy : {"gpipe", "1f1b"}) {
    const planner::Plan plan = PipelinePlan(4, 6, policy);
    for (int seed = 0; seed < kSeeds / 5; ++seed) {
      SCOPED_TRACE(seed);
      HarnessOptions options;
      options.seed = seed;
      options.is_emulated = options.has_stream_collectives = options.has_stream_messages = true;
      options.acts_per_poll = seed % 3 == 0 ? 1 : 256;
      options.trace_capacity = seed % 2 == 0 ? 0 : 10'000;
      std::unique_ptr<EngineHarness> harness = Start(plan, options);
      ASSERT_NE(harness, nullptr);
      ASSERT_TRUE(harness->launches_messages());
      for (int step = 0; step < 4; ++step) harness->Submit({FeedOf(6, 100 * step)});
      ASSERT_TRUE(harness->RunUntilDone()) << StrJoin(harness->Describe(), "\n");
      for (int step = 0; step < 4; ++step) {
        ASSERT_EQ(harness->StepStatus(step), absl::OkStatus());
        for (int m = 0; m < 6; ++m) {
          ASSERT_EQ(At(harness->fetched(step, 0), m, 1),
                    PipelineReference(4, 100 * step + 10 * m + 1));
        }
      }
    }
  }
}

// Two values go from one device to another, which has more registers for the second one: without
// turns it would come to receive that one first, and EmulatedCommunicator would find it.
TEST_F(ExecutorTest, MessagesOfAPairAreLaunchedInOneOrder) {
  constexpr uint32_t kMicrobatches = 6;
  EnginePlanBuilder b(kMicrobatches);
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t x = b.AddRegister(0, kMicrobatches);
  const uint32_t y = b.AddRegister(0, kMicrobatches);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t make_x = b.AddKernel(0, "x", "t.iota", {}, {x});
  const uint32_t make_y = b.AddKernel(0, "y", "t.affine", {x}, {y}, {{"scale", 3.0}});
  b.AddChannel(0, make_x, make_y);
  b.BeginPhase(0, "send x", PhaseKind::kTransfer, Lane::kFloating);
  b.AddChannel(0, make_x, b.AddSend(0, "send.x", x, 1), 1, 1, kMicrobatches);
  const uint32_t transfer_x = b.last_transfer();
  b.BeginPhase(0, "send y", PhaseKind::kTransfer, Lane::kFloating);
  b.AddChannel(0, make_y, b.AddSend(0, "send.y", y, 1), 1, 1, kMicrobatches);
  const uint32_t transfer_y = b.last_transfer();
  const uint32_t got_x = b.AddRegister(1, 1);
  const uint32_t got_y = b.AddRegister(1, 4);
  const uint32_t sum = b.AddRegister(1);
  b.BeginPhase(1, "recv x", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv_x = b.AddRecv(1, "recv.x", got_x, transfer_x);
  b.BeginPhase(1, "recv y", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv_y = b.AddRecv(1, "recv.y", got_y, transfer_y);
  b.BeginPhase(1, "F", PhaseKind::kForward);
  const uint32_t add = b.AddKernel(1, "add", "t.sum", {got_x, got_y}, {sum});
  b.AddChannel(1, recv_x, add, 1, 1, 1);
  b.AddChannel(1, recv_y, add, 1, 1, 4);
  b.AddChannel(1, add, b.AddFetch(1, "sum", sum));
  const planner::Plan plan = b.Build();
  for (int seed = 0; seed < kSeeds / 5; ++seed) {
    SCOPED_TRACE(seed);
    HarnessOptions options;
    options.seed = seed;
    options.is_emulated = options.has_stream_collectives = options.has_stream_messages = true;
    std::unique_ptr<EngineHarness> harness = Start(plan, options);
    ASSERT_NE(harness, nullptr);
    ASSERT_TRUE(harness->launches_messages());
    for (int step = 0; step < 3; ++step) harness->Submit({});
    ASSERT_TRUE(harness->RunUntilDone()) << StrJoin(harness->Describe(), "\n");
    for (int step = 0; step < 3; ++step) {
      ASSERT_EQ(harness->StepStatus(step), absl::OkStatus());
      for (int m = 0; m < static_cast<int>(kMicrobatches); ++m) {
        ASSERT_EQ(At(harness->fetched(step, 0), m, 1), 4 * (100 * step + 10 * m + 1));
      }
    }
  }
}

// A kernel fails on one stage. It is named once, the other stages poison their steps, too, and what
// is submitted after that runs.
TEST_F(ExecutorTest, AStageThatFailsTellsItsPeersByMessages) {
  planner::Plan plan = PipelinePlan(3, 4, "1f1b");
  for (planner::ActorPlan& actor : plan.devices[1].actors) {
    if (actor.name != "f1") continue;
    plan.kernels[actor.kernel].op = "t.fail";
    plan.kernels[actor.kernel].attributes.Set("step", 1);
    plan.kernels[actor.kernel].attributes.Set("microbatch", 2);
  }
  for (int seed = 0; seed < kSeeds / 5; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<DeviceStepReport> reports;
    HarnessOptions options;
    options.seed = seed;
    options.is_emulated = options.has_stream_collectives = options.has_stream_messages = true;
    options.on_step_done = [&](const DeviceStepReport& report) { reports.push_back(report); };
    std::unique_ptr<EngineHarness> harness = Start(plan, options);
    ASSERT_NE(harness, nullptr);
    ASSERT_TRUE(harness->launches_messages());
    for (int step = 0; step < 2; ++step) harness->Submit({FeedOf(4, 100 * step)});
    ASSERT_TRUE(harness->RunUntilDone()) << StrJoin(harness->Describe(), "\n");
    EXPECT_EQ(harness->StepStatus(0), absl::OkStatus());
    ASSERT_EQ(harness->errors().size(), 1u);
    EXPECT_THAT(std::string(harness->StepStatus(1).message()),
                HasSubstr("actor f1 on device 1, step 2, micro-batch 2: the disk is on fire"));
    int num_poisoned = 0;
    for (const DeviceStepReport& report : reports) num_poisoned += report.is_poisoned ? 1 : 0;
    EXPECT_EQ(num_poisoned, 3);
    harness->Submit({FeedOf(4, 300)});
    ASSERT_TRUE(harness->RunUntilDone());
    EXPECT_EQ(harness->StepStatus(2), absl::OkStatus());
    ASSERT_EQ(At(harness->fetched(2, 0), 3, 2), PipelineReference(3, 332));
  }
}

// Two devices reduce in place within the phase and once more in a floating phase.
planner::Plan CollectivePlan() {
  EnginePlanBuilder b(2);
  b.AddDevice();
  b.AddDevice();
  const std::vector<int64_t> counts = {2, 2};
  const uint32_t inner = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, counts, true);
  const uint32_t outer = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, counts, false);
  for (uint32_t d = 0; d < 2; ++d) {
    const uint32_t x = b.AddRegister(d);
    const uint32_t y = b.AddRegister(d);
    const uint32_t sum = b.AddRegister(d, 1, false);
    const uint32_t reduced = b.AddRegister(d, 2, false);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t iota = b.AddKernel(d, "iota", "t.iota", {}, {x});
    const uint32_t scale =
        b.AddKernel(d, "scale", "t.affine", {x}, {x}, {{"scale", d == 0 ? 1.0 : 3.0}});
    const uint32_t reduce = b.AddCollective(d, "reduce", inner, x, y);
    const uint32_t add = b.AddKernel(d, "add", "t.sum", {y}, {sum}, {}, true);
    b.AddChannel(d, iota, scale);
    b.AddChannel(d, scale, reduce);
    b.AddChannel(d, reduce, add);
    b.BeginPhase(d, "reduce sum", PhaseKind::kTransfer, Lane::kFloating, false);
    const uint32_t again = b.AddCollective(d, "reduce again", outer, sum, reduced);
    b.AddChannel(d, add, again, 1, 2, 2);
    b.BeginPhase(d, "after", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t last = d == 0 ? b.AddFetch(d, "out", reduced)
                                 : b.AddKernel(d, "sink", "t.affine", {reduced}, {reduced});
    b.AddChannel(d, again, last, 1, 1, 2);
  }
  return b.Build();
}

TEST_F(ExecutorTest, CollectivesInPhasesAndBetweenThem) {
  ForSeeds(CollectivePlan(), [](EngineHarness& harness) {
    for (int step = 0; step < 3; ++step) harness.Submit({});
    ASSERT_TRUE(harness.RunUntilDone());
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < kWidth; ++i) {
        const double both = 4 * (100 * step + i) + 4 * (100 * step + 10 + i);
        ASSERT_EQ(At(harness.fetched(step, 0), 0, i), 2 * both);
      }
    }
  });
}

// Buckets of gradients in phases of their own, which may start as soon as their tokens come, beside
// collectives of the same devices in F. EmulatedCommunicator finds launches that are out of order.
planner::Plan BucketsPlan(int num_buckets) {
  EnginePlanBuilder b(2);
  b.AddDevice();
  b.AddDevice();
  const std::vector<int64_t> counts = {2, 2};
  std::vector<uint32_t> inner, outer;
  for (int i = 0; i < num_buckets; ++i) {
    inner.push_back(b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, counts, true));
  }
  for (int i = 0; i < num_buckets; ++i) {
    outer.push_back(b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, counts, false));
  }
  for (uint32_t d = 0; d < 2; ++d) {
    std::vector<uint32_t> sums, reduced, adds;
    for (int i = 0; i < num_buckets; ++i) {
      sums.push_back(b.AddRegister(d, 1, false));
      reduced.push_back(b.AddRegister(d, 1, false));
    }
    b.BeginPhase(d, "F", PhaseKind::kForward);
    for (int i = 0; i < num_buckets; ++i) {
      const uint32_t x = b.AddRegister(d);
      const uint32_t y = b.AddRegister(d);
      const uint32_t iota = b.AddKernel(d, StrCat("iota", i), "t.iota", {}, {x});
      const uint32_t scale =
          b.AddKernel(d, StrCat("scale", i), "t.affine", {x}, {x}, {{"scale", i + 1.0}});
      const uint32_t reduce = b.AddCollective(d, StrCat("reduce", i), inner[i], x, y);
      adds.push_back(b.AddKernel(d, StrCat("add", i), "t.sum", {y}, {sums[i]}, {}, true));
      b.AddChannel(d, iota, scale);
      b.AddChannel(d, scale, reduce);
      b.AddChannel(d, reduce, adds.back());
    }
    std::vector<uint32_t> agains;
    for (int i = 0; i < num_buckets; ++i) {
      b.BeginPhase(d, StrCat("bucket ", i), PhaseKind::kTransfer, Lane::kFloating, false);
      agains.push_back(b.AddCollective(d, StrCat("again", i), outer[i], sums[i], reduced[i]));
      b.AddChannel(d, adds[i], agains[i], 1, 2, 2);
    }
    b.BeginPhase(d, "after", PhaseKind::kAfterStep, Lane::kPerStep, false);
    for (int i = 0; i < num_buckets; ++i) {
      const uint32_t last =
          d == 0 ? b.AddFetch(d, StrCat("out", i), reduced[i])
                 : b.AddKernel(d, StrCat("sink", i), "t.affine", {reduced[i]}, {reduced[i]});
      b.AddChannel(d, agains[i], last, 1, 1, 1);
    }
  }
  return b.Build();
}

TEST_F(ExecutorTest, MembersLaunchCollectivesInOneOrder) {
  constexpr int kBuckets = 3;
  const planner::Plan plan = BucketsPlan(kBuckets);
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    HarnessOptions options;
    options.seed = seed;
    options.is_emulated = true;
    options.has_stream_collectives = true;
    options.acts_per_poll = seed % 3 == 0 ? 1 : 256;
    std::unique_ptr<EngineHarness> harness = Start(plan, options);
    ASSERT_NE(harness, nullptr);
    ASSERT_TRUE(harness->has_launch_order());
    for (int step = 0; step < 4; ++step) harness->Submit({});
    ASSERT_TRUE(harness->RunUntilDone()) << StrJoin(harness->Describe(), "\n");
    for (int step = 0; step < 4; ++step) {
      ASSERT_EQ(harness->StepStatus(step), absl::OkStatus());
      for (int i = 0; i < kBuckets; ++i) {
        const double both = 2 * (100 * step + 1) + 2 * (100 * step + 11);
        ASSERT_EQ(At(harness->fetched(step, i), 0, 1), 2 * (i + 1) * both) << i;
      }
    }
  }
}

// A value made once a step and read by every micro-batch; an instance a micro-batch in the once
// lane; a gather over micro-batches.
TEST_F(ExecutorTest, Rates) {
  EnginePlanBuilder b(3);
  const uint32_t d = b.AddDevice();
  const uint32_t once = b.AddRegister(d, 2, false);
  const uint32_t each = b.AddRegister(d, 3);
  const uint32_t total = b.AddRegister(d, 2, false);
  b.BeginPhase(d, "before", PhaseKind::kBeforeStep, Lane::kPerStep, false);
  const uint32_t make = b.AddKernel(d, "make", "t.iota", {}, {once});
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t use = b.AddKernel(d, "use", "t.affine", {once}, {each}, {{"shift", 0.5}});
  b.BeginPhase(d, "each", PhaseKind::kAfterStep, Lane::kPerStep, true);
  const uint32_t add = b.AddKernel(d, "add", "t.sum", {each}, {total}, {}, true);
  b.BeginPhase(d, "after", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t fetch = b.AddFetch(d, "total", total);
  b.AddChannel(d, make, use, 3, 1, 6);
  b.AddChannel(d, use, add, 1, 1, 3);
  b.AddChannel(d, add, fetch, 1, 3, 6);
  ForSeeds(b.Build(), [](EngineHarness& harness) {
    for (int step = 0; step < 4; ++step) harness.Submit({});
    ASSERT_TRUE(harness.RunUntilDone());
    for (int step = 0; step < 4; ++step) {
      ASSERT_EQ(At(harness.fetched(step, 0), 0, 1), 3 * (100 * step + 1.5));
    }
  });
}

// Shared by the kernels of CreditsBoundWhatIsInFlight: outside the kernels, so that it can watch.
struct Gauge {
  int in_flight = 0;
  int peak = 0;
};

class GaugeKernel : public kernels::Kernel {
 public:
  GaugeKernel(Gauge* gauge, int delta) : gauge_(gauge), delta_(delta) {}
  absl::Status Run(const kernels::KernelArgs&) override {
    gauge_->in_flight += delta_;
    gauge_->peak = std::max(gauge_->peak, gauge_->in_flight);
    return absl::OkStatus();
  }

 private:
  Gauge* gauge_;
  int delta_;
};

kernels::KernelDef GaugeDef(Gauge* gauge, int delta) {
  kernels::KernelDef def;
  def.create = [=](const kernels::KernelSpec&, Device&,
                   Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
    return std::make_unique<GaugeKernel>(gauge, delta);
  };
  return def;
}

TEST_F(ExecutorTest, CreditsBoundWhatIsInFlight) {
  for (int credits = 1; credits <= 4; ++credits) {
    Gauge gauge;
    kernels_ = EngineTestKernels();
    ASSERT_TRUE(kernels_.Add("take", GaugeDef(&gauge, 1)).ok());
    ASSERT_TRUE(kernels_.Add("give", GaugeDef(&gauge, -1)).ok());
    EnginePlanBuilder b(8, "1f1b");
    const uint32_t d = b.AddDevice();
    const uint32_t reg = b.AddRegister(d, credits);
    const uint32_t sink = b.AddRegister(d);
    b.BeginPhase(d, "take", PhaseKind::kTransfer, Lane::kFloating);
    const uint32_t take = b.AddKernel(d, "take", "take", {}, {reg});
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t give = b.AddKernel(d, "give", "give", {reg}, {sink});
    b.AddChannel(d, take, give, 1, 1, credits);
    int highest = 0;
    ForSeeds(
        b.Build(),
        [&](EngineHarness& harness) {
          gauge = Gauge();
          for (int step = 0; step < 2; ++step) harness.Submit({});
          ASSERT_TRUE(harness.RunUntilDone());
          EXPECT_EQ(gauge.in_flight, 0);
          EXPECT_LE(gauge.peak, credits);
          highest = std::max(highest, gauge.peak);
        },
        50);
    EXPECT_EQ(highest, credits);
  }
}

// Backwards first where one is ready, else forwards: decides from the view alone.
std::optional<planner::PhaseChoice> ChooseGreedily(const planner::StageContext&,
                                                   const planner::StageView& view) {
  for (const PhaseKind kind : {PhaseKind::kBackward, PhaseKind::kForward}) {
    const int k = static_cast<int>(kind);
    if (view.chunks[0].ready[k] > 0) {
      return planner::PhaseChoice{kind, view.chunks[0].issued[k]};
    };
  }
  return std::nullopt;
}

TEST_F(ExecutorTest, PolicyThatDecidesFromTheState) {
  ASSERT_TRUE(policies_.Add(std::make_unique<DynamicPolicy>("greedy", ChooseGreedily)).ok());
  ForSeeds(
      PipelinePlan(3, 4, "greedy"),
      [](EngineHarness& harness) {
        for (int step = 0; step < 3; ++step) harness.Submit({FeedOf(4, 100 * step)});
        ASSERT_TRUE(harness.RunUntilDone());
        for (int step = 0; step < 3; ++step) {
          ASSERT_EQ(At(harness.fetched(step, 0), 3, 2), PipelineReference(3, 100 * step + 32));
        }
      },
      kSeeds / 2);
}

TEST_F(ExecutorTest, IllegalChoiceIsAnError) {
  const auto skip = [](const planner::StageContext&, const planner::StageView& view) {
    return planner::PhaseChoice{PhaseKind::kForward, 2 * view.chunks[0].issued[0]};
  };
  ASSERT_TRUE(policies_.Add(std::make_unique<DynamicPolicy>("illegal", skip)).ok());
  std::unique_ptr<EngineHarness> harness = Start(PipelinePlan(2, 4, "illegal"), {});
  ASSERT_NE(harness, nullptr);
  harness->Submit({FeedOf(4, 0)});
  EXPECT_FALSE(harness->RunUntilDone());
  EXPECT_THAT(std::string(harness->stage(1).status().message()),
              HasSubstr("policy 'illegal' chose F2 on stage 1 in step 1"));
}

TEST_F(ExecutorTest, FailingKernelPoisonsItsStepAndDrains) {
  for (const char* op : {"t.fail", "t.throw", "t.throw_int"}) {
    planner::Plan plan = PipelinePlan(3, 4, "1f1b");
    for (planner::ActorPlan& actor : plan.devices[1].actors) {
      if (actor.name != "f1") continue;
      plan.kernels[actor.kernel].op = op;
      plan.kernels[actor.kernel].attributes.Set("step", 1);
      plan.kernels[actor.kernel].attributes.Set("microbatch", 2);
    }
    ForSeeds(
        plan,
        [&](EngineHarness& harness) {
          harness.Submit({FeedOf(4, 0)});
          ASSERT_TRUE(harness.RunUntilDone());
          EXPECT_TRUE(harness.StepStatus(0).ok());
          harness.Submit({FeedOf(4, 100)});
          harness.Submit({FeedOf(4, 200)});
          ASSERT_TRUE(harness.RunUntilDone());
          EXPECT_THAT(std::string(harness.StepStatus(1).message()),
                      HasSubstr("actor f1 on device 1, step 2, micro-batch 2: "));
          ASSERT_EQ(harness.errors().size(), 1u);
          EXPECT_FALSE(harness.StepStatus(2).ok());  // its state may lack step 1's update
          harness.Submit({FeedOf(4, 300)});
          ASSERT_TRUE(harness.RunUntilDone());
          EXPECT_TRUE(harness.StepStatus(3).ok());
          ASSERT_EQ(At(harness.fetched(3, 0), 3, 2), PipelineReference(3, 332));
        },
        kSeeds / 5);
  }
}

TEST_F(ExecutorTest, PoisonTravelsThroughCollectivesAndStopsUpdates) {
  EnginePlanBuilder b;
  const uint32_t devices = 3;
  for (uint32_t d = 0; d < devices; ++d) b.AddDevice();
  const uint32_t reduce =
      b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1, 2}, {2, 1, 1}, true);
  std::vector<uint32_t> states;
  for (uint32_t d = 0; d < devices; ++d) {
    const uint32_t w = b.AddState(d, StrCat("w", d));
    states.push_back(w);
    const uint32_t x = b.AddRegister(d);
    const uint32_t y = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t make = b.AddKernel(d, "make", "t.iota", {}, {x});
    const uint32_t risk =
        b.AddKernel(d, "risk", d == 2 ? "t.fail" : "t.affine", {x}, {x}, {{"step", 1}});
    const uint32_t all = b.AddCollective(d, "all", reduce, x, y);
    b.AddChannel(d, make, risk);
    b.AddChannel(d, risk, all);
    b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t update = b.AddKernel(d, "update", "t.bump", {w, y}, {w});
    b.AddChannel(d, all, update);
  }
  ForSeeds(
      b.Build(),
      [&](EngineHarness& harness) {
        for (int step = 0; step < 3; ++step) {
          harness.Submit({});
          ASSERT_TRUE(harness.RunUntilDone());
        }
        EXPECT_THAT(
            std::string(harness.StepStatus(1).message()),
            HasSubstr("actor risk on device 2, step 2, micro-batch 0: the disk is on fire"));
        for (uint32_t d = 0; d < devices; ++d) {
          ASSERT_EQ(harness.Read(d, states[d])[0], 3 * 0.0 + 3 * 200.0);
        }
      },
      kSeeds / 3);
}

// Though what writes the states may have been launched before the failure is known.
TEST_F(ExecutorTest, AFailedStepWritesNoState) {
  EnginePlanBuilder b;
  const uint32_t d = b.AddDevice();
  const uint32_t same_phase = b.AddState(d, "same");
  const uint32_t other_lane = b.AddState(d, "other");
  const uint32_t x = b.AddRegister(d);
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t make = b.AddKernel(d, "make", "t.iota", {}, {x});
  const uint32_t risk = b.AddKernel(d, "risk", "t.fail", {x}, {x}, {{"step", 1}});
  const uint32_t bump = b.AddKernel(d, "bump", "t.bump", {same_phase, x}, {same_phase});
  b.AddChannel(d, make, risk);
  b.AddChannel(d, risk, bump);
  b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t update = b.AddKernel(d, "update", "t.bump", {other_lane, x}, {other_lane});
  b.AddChannel(d, risk, update);
  ForSeeds(
      b.Build(),
      [&](EngineHarness& harness) {
        harness.Submit({});
        ASSERT_TRUE(harness.RunUntilDone());
        harness.Submit({});
        harness.Submit({});
        ASSERT_TRUE(harness.RunUntilDone());
        ASSERT_EQ(harness.errors().size(), 1u);
        EXPECT_THAT(
            harness.errors()[0].second,
            HasSubstr("actor risk on device 0, step 2, micro-batch 0: the disk is on fire"));
        harness.Submit({});
        ASSERT_TRUE(harness.RunUntilDone());
        EXPECT_TRUE(harness.StepStatus(3).ok());
        for (const uint32_t state : {same_phase, other_lane}) {
          ASSERT_EQ(harness.Read(d, state)[0], 0 + 300);
        }
      },
      kSeeds / 3);
}

TEST_F(ExecutorTest, MissingPeerIsNamed) {
  // Device 0 never sends: its actor is left out of the plan.
  EnginePlanBuilder b;
  b.AddDevice();
  b.AddDevice();
  const uint32_t x0 = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "f", "t.iota", {}, {x0});
  b.plan().transfers.push_back({b.plan().num_channels++, 0, 1, 64, true});
  const uint32_t x1 = b.AddRegister(1);
  b.BeginPhase(1, "F", PhaseKind::kForward);
  const uint32_t recv = b.AddRecv(1, "recv.h", x1, 0);
  const uint32_t use = b.AddKernel(1, "use", "t.affine", {x1}, {x1});
  b.AddChannel(1, recv, use);
  std::unique_ptr<EngineHarness> harness = Start(b.Build(), {});
  ASSERT_NE(harness, nullptr);
  harness->Submit({});
  EXPECT_FALSE(harness->RunUntilDone());
  const std::string report = StrJoin(harness->Describe(), "\n");
  EXPECT_THAT(report, HasSubstr("device 1: phase 'F', step 1, micro-batch 0, is at actor 'use', "
                                "which misses 1 tokens; from 'recv.h'"));
  EXPECT_THAT(report, HasSubstr("device 1: pending recv 'recv.h', step 1, micro-batch 0, from "
                                "device 0"));
  // The same for programs.
  const actors::DeviceSnapshot snapshot = harness->executor(1).Snapshot();
  EXPECT_EQ(snapshot.state, actors::DeviceSnapshot::State::kWaiting);
  EXPECT_EQ(snapshot.device, 1u);
  EXPECT_EQ(snapshot.step, 0);
  EXPECT_GT(snapshot.still_ns, 0);
  EXPECT_GE(snapshot.transfer_ns, snapshot.still_ns);
  EXPECT_GE(snapshot.idle_ns, snapshot.transfer_ns);
  EXPECT_GE(snapshot.age_ns, snapshot.idle_ns);
  EXPECT_THAT(snapshot.communications, ElementsAre(1));  // started, not completed
  const std::vector<actors::DeviceWait> waits = harness->executor(1).Waits();
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_EQ(waits[0].actor, "use");
  EXPECT_EQ(waits[0].what, "tokens from 'recv.h'");
  EXPECT_EQ(waits[0].communication, planner::kNone);
  EXPECT_EQ(waits[1].actor, "recv.h");
  EXPECT_EQ(waits[1].communication, 0u);
  EXPECT_EQ(harness->executor(0).Snapshot().state, actors::DeviceSnapshot::State::kIdle);
}

TEST_F(ExecutorTest, WhatWaitsForCommunicationHoldsUpNothingElse) {
  // Device 1 is not polled at first, so the reduction cannot end.
  EnginePlanBuilder b;
  const std::vector<int64_t> counts = {kWidth / 2, kWidth - kWidth / 2};
  const uint32_t sum = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, counts, true);
  std::vector<uint32_t> r;
  for (uint32_t d = 0; d < 2; ++d) {
    b.AddDevice();
    for (int i = 0; i < 5; ++i) r.push_back(b.AddRegister(d));
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t* own = r.data() + 5 * d;
    const uint32_t make = b.AddKernel(d, "make", "t.iota", {}, {own[0]});
    const uint32_t reduce = b.AddCollective(d, "reduce", sum, own[0], own[1]);
    const uint32_t use =
        b.AddKernel(d, "use", "t.affine", {own[1]}, {own[2]}, {{"scale", 1.0}, {"shift", 0.0}});
    const uint32_t other = b.AddKernel(d, "other", "t.iota", {}, {own[3]});
    const uint32_t both = b.AddKernel(d, "after other", "t.affine", {own[3]}, {own[4]},
                                      {{"scale", 2.0}, {"shift", 0.0}});
    b.AddChannel(d, make, reduce);
    b.AddChannel(d, reduce, use);
    b.AddChannel(d, other, both);
  }
  std::unique_ptr<EngineHarness> harness = Start(b.Build(), {});
  ASSERT_NE(harness, nullptr);
  harness->Submit({});
  for (int i = 0; i < 100; ++i) {
    harness->stage(0).Poll();
    harness->executor(0).Poll();
  }
  EXPECT_EQ(harness->Read(0, r[4])[3], 2 * harness->Read(0, r[3])[3]);
  EXPECT_NE(harness->Read(0, r[4])[3], 0);
  EXPECT_THAT(StrJoin(harness->Describe(), "\n"),
              HasSubstr("device 0: phase 'F', step 1, micro-batch 0, is at actor 'use', which "
                        "misses 1 tokens; from 'reduce'"));
  ASSERT_TRUE(harness->RunUntilDone());
  EXPECT_EQ(harness->Read(0, r[2])[3], 2 * harness->Read(0, r[0])[3]);
}

TEST_F(ExecutorTest, CollectivesOfAGroupStartInThePlansOrder) {
  constexpr int kCollectives = 6;
  EnginePlanBuilder b;
  const std::vector<int64_t> counts = {kWidth / 2, kWidth - kWidth / 2};
  std::vector<uint32_t> sums;
  for (int i = 0; i < kCollectives; ++i) {
    sums.push_back(b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, counts, true));
  }
  for (uint32_t d = 0; d < 2; ++d) {
    b.AddDevice();
    b.BeginPhase(d, "F", PhaseKind::kForward);
    for (int i = 0; i < kCollectives; ++i) {
      const uint32_t x = b.AddRegister(d);
      const uint32_t y = b.AddRegister(d);
      const uint32_t make = b.AddKernel(d, "make", "t.iota", {}, {x});
      b.AddChannel(d, make, b.AddCollective(d, "reduce", sums[i], x, y));
    }
  }
  const planner::Plan plan = b.Build();
  bool has_fired_out_of_order = false;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    options.firing_seed = seed;
    options.trace_capacity = 1000;
    std::unique_ptr<EngineHarness> harness = Start(plan, options);
    ASSERT_NE(harness, nullptr);
    harness->Submit({});
    ASSERT_TRUE(harness->RunUntilDone());
    std::vector<std::pair<int64_t, uint32_t>> kernels;
    std::vector<std::pair<uint32_t, int64_t>> collectives;
    for (const TraceEvent& event : harness->executor(0).TakeTrace()) {
      if (event.actor == planner::kNone) continue;
      if (event.actor % 2 == 0) {
        kernels.emplace_back(event.begin_ns, event.actor);
      } else {
        collectives.emplace_back(event.actor, event.begin_ns);
      }
    }
    std::sort(kernels.begin(), kernels.end());
    has_fired_out_of_order |=
        !std::is_sorted(kernels.begin(), kernels.end(),
                        [](const auto& a, const auto& c) { return a.second < c.second; });
    std::sort(collectives.begin(), collectives.end());
    EXPECT_EQ(collectives.size(), kCollectives);
    EXPECT_TRUE(std::is_sorted(collectives.begin(), collectives.end(),
                               [](const auto& a, const auto& c) { return a.second < c.second; }));
  }
  EXPECT_TRUE(has_fired_out_of_order);
}

// F puts what it makes of a micro-batch on the host, B takes it from there, and the update works on
// a state that lives on the host. `is_floating`: the copies of micro-batches run beside F and B.
planner::Plan OffloadingPlan(uint32_t microbatches, bool is_floating) {
  EnginePlanBuilder b(microbatches, "gpipe");
  const uint32_t d = b.AddDevice();
  const uint32_t x = b.AddRegister(d);
  const uint32_t y = b.AddRegister(d, is_floating ? 2 : 1);
  const uint32_t loaded = b.AddRegister(d, is_floating ? 2 : 1);
  const uint32_t z = b.AddRegister(d);
  const uint32_t sum = b.AddRegister(d, 1, false);
  const uint32_t w = b.AddRegister(d, 1, false);
  const uint32_t host_y = b.AddHostRegister(d, microbatches);
  const uint32_t host_w = b.AddHostState(d, "w", "ones");
  const auto begin_copy = [&](const std::string& name) {
    if (is_floating) b.BeginPhase(d, name, PhaseKind::kTransfer, Lane::kFloating);
  };
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t feed = b.AddFeed(d, "x", x);
  const uint32_t f = b.AddKernel(d, "f", "t.affine", {x}, {y}, {{"scale", 2.0}});
  begin_copy("store y");
  const uint32_t store = b.AddCopy(d, "store y", y, host_y);
  begin_copy("load y");
  if (!is_floating) b.BeginPhase(d, "B", PhaseKind::kBackward);
  const uint32_t load = b.AddCopy(d, "load y", host_y, loaded);
  if (is_floating) b.BeginPhase(d, "B", PhaseKind::kBackward);
  const uint32_t g = b.AddKernel(d, "g", "t.affine", {loaded}, {z}, {{"shift", 1.0}});
  const uint32_t fetch_z = b.AddFetch(d, "z", z);
  const uint32_t add = b.AddKernel(d, "sum", "t.sum", {z}, {sum}, {}, /*accumulate=*/true);
  b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t load_w = b.AddCopy(d, "load w", host_w, w);
  const uint32_t bump = b.AddKernel(d, "bump", "t.bump", {w, sum}, {w});
  const uint32_t store_w = b.AddCopy(d, "store w", w, host_w);
  const uint32_t fetch_w = b.AddFetch(d, "w", w);
  b.AddChannel(d, feed, f);
  b.AddChannel(d, f, store, 1, 1, is_floating ? 2 : 1);
  b.AddChannel(d, store, load, 1, 1, microbatches);
  b.AddChannel(d, load, g, 1, 1, is_floating ? 2 : 1);
  b.AddChannel(d, g, fetch_z);
  b.AddChannel(d, g, add);
  b.AddChannel(d, add, bump, 1, microbatches, microbatches);
  b.AddChannel(d, load_w, bump);
  b.AddChannel(d, bump, store_w);
  b.AddChannel(d, bump, fetch_w);
  return b.Build();
}

TEST_F(ExecutorTest, CopiesJoinTheMemoriesOfDeviceAndHost) {
  constexpr uint32_t kMicrobatches = 4;
  for (const bool is_floating : {false, true}) {
    const planner::Plan plan = OffloadingPlan(kMicrobatches, is_floating);
    EXPECT_EQ(plan.devices[0].host_bytes, (kMicrobatches + 1) * 64);
    ForSeeds(
        plan,
        [&](EngineHarness& harness) {
          for (int step = 0; step < 3; ++step) harness.Submit({FeedOf(kMicrobatches, 100 * step)});
          ASSERT_TRUE(harness.RunUntilDone());
          double w = 0;  // no session has initialised it
          for (int step = 0; step < 3; ++step) {
            ASSERT_EQ(harness.StepStatus(step), absl::OkStatus());
            for (uint32_t m = 0; m < kMicrobatches; ++m) {
              const double z = 2 * (100 * step + 10 * m + 3) + 1;
              EXPECT_EQ(At(harness.fetched(step, 0), m, 3), z);
              w += z;
            }
            EXPECT_EQ(At(harness.fetched(step, 1), 0, 3), w);
          }
          const uint32_t host_w = plan.states[0].placements[0].reg;
          EXPECT_EQ(harness.Read(0, host_w)[3], w);
        },
        kSeeds / 2);
  }
}

TEST_F(ExecutorTest, KernelThatCannotBeMadeIsNamed) {
  EnginePlanBuilder b;
  const uint32_t d = b.AddDevice();
  const uint32_t x = b.AddRegister(d);
  b.BeginPhase(d, "F", PhaseKind::kForward);
  b.AddKernel(d, "h3.attn", "t.refuse", {}, {x});
  const auto harness = EngineHarness::Create(b.Build(), {}, kernels_, policies_);
  EXPECT_EQ(harness.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(harness.status().message(), "actor h3.attn on device 0: no such thing in f64");
}

// F stashes a value for both kernels of B; two micro-batches.
TEST_F(ExecutorTest, ASnapshotCountsCreditsTokensAndBytesOfChannels) {
  EnginePlanBuilder b(2, "gpipe");
  b.AddDevice();
  const uint32_t stash = b.AddRegister(0, 2);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", "t.iota", {}, {stash});
  b.BeginPhase(0, "B", PhaseKind::kBackward);
  for (const char* name : {"g", "h"}) {
    const uint32_t out = b.AddRegister(0);
    b.AddChannel(0, f, b.AddKernel(0, name, "t.affine", {stash}, {out}), 1, 1, 2);
  }
  planner::Plan plan = b.Build();
  for (uint32_t c = 0; c < 2; ++c) plan.devices[0].channels[c].reg = stash;
  const uint64_t slot_bytes = plan.devices[0].registers[stash].slot_bytes;
  HarnessOptions options;
  options.acts_per_poll = 1;
  std::unique_ptr<EngineHarness> harness = Start(plan, options);
  ASSERT_NE(harness, nullptr);
  const struct {
    ChannelUse channels;
    int64_t microbatches = 0;
  } after_polls[] = {
      {{4, 0, 0, 0}, 0},
      {{4, 2, 2, slot_bytes}, 0},      // F of the first micro-batch
      {{4, 4, 4, 2 * slot_bytes}, 0},  // F of the second
      {{4, 3, 2, 2 * slot_bytes}, 0},  // g, which gives back its credit; h still reads the slot
      {{4, 2, 2, slot_bytes}, 1},      // h
      {{4, 1, 0, slot_bytes}, 1},
      {{4, 0, 0, 0}, 2},
  };
  harness->Submit({});
  EXPECT_TRUE(harness->stage(0).Poll());
  for (size_t i = 0; i < std::size(after_polls); ++i) {
    if (i > 0) {
      EXPECT_TRUE(harness->executor(0).Poll());
    }
    const DeviceSnapshot snapshot = harness->executor(0).Snapshot();
    EXPECT_EQ(snapshot.channels, after_polls[i].channels) << "after " << i << " acts";
    EXPECT_EQ(snapshot.microbatches, after_polls[i].microbatches) << "after " << i << " acts";
  }
}

TEST_F(ExecutorTest, TraceHasEveryActorOfEveryInstance) {
  for (const bool is_emulated : {false, true}) {
    HarnessOptions options;
    options.is_emulated = is_emulated;
    options.trace_capacity = 1000;
    std::unique_ptr<EngineHarness> harness = Start(PipelinePlan(2, 3, "1f1b"), options);
    ASSERT_NE(harness, nullptr);
    for (int step = 0; step < 2; ++step) harness->Submit({FeedOf(3, 0)});
    ASSERT_TRUE(harness->RunUntilDone());
    const std::vector<TraceEvent> trace = harness->executor(0).TakeTrace();
    // feed, f, send x, recv g, b, fetch; phases F, send x, recv g, B.
    EXPECT_EQ(trace.size(), 2u * 3 * (6 + 4));
    for (const TraceEvent& event : trace) EXPECT_LE(event.begin_ns, event.end_ns);
    EXPECT_TRUE(harness->executor(0).TakeTrace().empty());
  }
}

// The update is launched while F and B are still under way, and waits for them in its stream.
TEST_F(ExecutorTest, TracedActsBeginWhenTheirPhaseHasWhatItWaitsFor) {
  const planner::Plan plan = OffloadingPlan(2, /*is_floating=*/false);
  const std::vector<planner::PhasePlan>& phases = plan.devices[0].phases;
  for (int seed = 0; seed < kSeeds / 10; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    options.is_emulated = true;
    options.trace_capacity = 1000;
    std::unique_ptr<EngineHarness> harness = Start(plan, options);
    ASSERT_NE(harness, nullptr);
    harness->Submit({FeedOf(2, 0)});
    ASSERT_TRUE(harness->RunUntilDone());
    int64_t backward_end = 0;
    std::vector<int64_t> update_begins;
    for (const TraceEvent& event : harness->executor(0).TakeTrace()) {
      if (phases[event.phase].name == "update") {
        update_begins.push_back(event.begin_ns);
      } else if (event.actor == planner::kNone) {
        backward_end = std::max(backward_end, event.end_ns);
      }
    }
    EXPECT_EQ(update_begins.size(), 5u);  // four acts, and the phase
    for (const int64_t begin : update_begins) EXPECT_GE(begin, backward_end) << "seed " << seed;
  }
}

// From then on, another thread may take it.
TEST_F(ExecutorTest, AStepThatIsReportedHasBeenTraced) {
  const planner::Plan plan = CollectivePlan();
  for (int seed = 0; seed < kSeeds / 10; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    options.is_emulated = true;
    options.has_stream_collectives = true;
    options.trace_capacity = 1000;
    EngineHarness* running = nullptr;
    options.on_step_done = [&](const DeviceStepReport& report) {
      size_t expected = 0;
      for (const planner::PhasePlan& phase : plan.devices[report.device].phases) {
        expected += (phase.num_actors + 1) * (phase.per_microbatch ? plan.num_microbatches : 1);
      }
      EXPECT_EQ(running->executor(report.device).TakeTrace().size(), expected) << "seed " << seed;
    };
    std::unique_ptr<EngineHarness> harness = Start(plan, options);
    ASSERT_NE(harness, nullptr);
    running = harness.get();
    for (int step = 0; step < 2; ++step) {
      harness->Submit({});
      ASSERT_TRUE(harness->RunUntilDone());
    }
  }
}

TEST_F(ExecutorTest, AFullTraceKeepsTheLastEvents) {
  HarnessOptions options;
  options.trace_capacity = 25;
  std::unique_ptr<EngineHarness> harness = Start(PipelinePlan(2, 3, "1f1b"), options);
  ASSERT_NE(harness, nullptr);
  for (int step = 0; step < 3; ++step) {
    harness->Submit({FeedOf(3, 0)});
    ASSERT_TRUE(harness->RunUntilDone());
  }
  const std::vector<TraceEvent> trace = harness->executor(0).TakeTrace();
  ASSERT_EQ(trace.size(), 25u);
  for (const TraceEvent& event : trace) EXPECT_EQ(event.step, 2);  // of 30 events
  for (size_t i = 1; i < trace.size(); ++i) EXPECT_GE(trace[i].end_ns, trace[i - 1].end_ns);
}

}  // namespace
}  // namespace penstock::actors
