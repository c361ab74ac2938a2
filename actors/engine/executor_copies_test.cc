// Copies between the memories of an asynchronous device and its host: they run beside kernels, and
// what reads or overwrites what they copy waits for them.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/executor.h"
#include "tests/support/engine_harness.h"
#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::Lane;
using planner::PhaseKind;
using testing::EngineHarness;
using testing::EnginePlanBuilder;
using testing::EngineTestKernels;
using testing::HarnessOptions;
using ::testing::HasSubstr;
using testing::kWidth;

constexpr int kNumMicrobatches = 3;
constexpr uint32_t kKept = 2;  // micro-batches of which the host keeps something
constexpr int kNumSteps = 6;

struct CopyPlan {
  planner::Plan plan;
  std::vector<uint32_t> copies;
};

// F: a = 2 x, kept on the host, then overwritten: a = 2 x + 7, which is fetched. B: the sum of what
// was kept and iota. The update adds up those of a step, with a total on the host: total += sum.
CopyPlan PlanWithCopies(const std::string& first_op = "t.affine") {
  EnginePlanBuilder b(kNumMicrobatches);
  const uint32_t d = b.AddDevice();
  const uint32_t x = b.AddRegister(d);
  const uint32_t a = b.AddRegister(d);
  const uint32_t next = b.AddRegister(d);
  const uint32_t loaded = b.AddRegister(d);
  const uint32_t draw = b.AddRegister(d);
  const uint32_t sum = b.AddRegister(d, 1, false);
  const uint32_t old_total = b.AddRegister(d, 1, false);
  const uint32_t new_total = b.AddRegister(d, 1, false);
  const uint32_t kept = b.AddHostRegister(d, kKept);
  const uint32_t total = b.AddHostState(d, "total");

  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t feed = b.AddFeed(d, "x", x);
  const uint32_t make =
      b.AddKernel(d, "make", first_op, {x}, {a}, {{"scale", 2.0}, {"step", 2}, {"microbatch", 1}});
  const uint32_t store = b.AddCopy(d, "store", a, kept);
  const uint32_t use = b.AddKernel(d, "use", "t.affine", {a}, {next}, {{"shift", 7.0}});
  const uint32_t overwrite = b.AddKernel(d, "overwrite", "t.affine", {next}, {a});
  const uint32_t fetch = b.AddFetch(d, "a", a);
  b.AddChannel(d, feed, make);
  b.AddChannel(d, make, store);
  b.AddChannel(d, make, use);
  b.AddChannel(d, use, overwrite);
  b.AddChannel(d, store, overwrite);  // order alone
  b.AddChannel(d, overwrite, fetch);

  b.BeginPhase(d, "B", PhaseKind::kBackward);
  const uint32_t load = b.AddCopy(d, "load", kept, loaded);
  const uint32_t iota = b.AddKernel(d, "iota", "t.iota", {}, {draw});
  const uint32_t add = b.AddKernel(d, "add", "t.sum", {loaded, draw}, {sum}, {}, true);
  b.AddChannel(d, store, load, 1, 1, kKept);
  b.AddChannel(d, load, add);
  b.AddChannel(d, iota, add);

  b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t get = b.AddCopy(d, "get", total, old_total);
  const uint32_t update = b.AddKernel(d, "update", "t.sum", {old_total, sum}, {new_total});
  const uint32_t put = b.AddCopy(d, "put", new_total, total);
  const uint32_t fetch_sum = b.AddFetch(d, "sum", sum);
  b.AddChannel(d, get, update);
  b.AddChannel(d, update, put);
  b.AddChannel(d, add, update, 1, kNumMicrobatches, kNumMicrobatches);
  b.AddChannel(d, add, fetch_sum, 1, kNumMicrobatches, kNumMicrobatches);
  return {b.Build(), {store, load, get, put}};
}

class ExecutorCopiesTest : public ::testing::Test {
 protected:
  std::unique_ptr<EngineHarness> Start(const planner::Plan& plan, HarnessOptions options) {
    options.is_emulated = true;
    auto harness = EngineHarness::Create(plan, options, kernels_, policies_);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return harness.ok() ? *std::move(harness) : nullptr;
  }

  static Tensor Feed(int step) {
    Tensor feed({DType::kF64, {kNumMicrobatches, kWidth}});
    for (int64_t i = 0; i < feed.num_elements(); ++i) feed.As<double>()[i] = 1000.0 * step + i;
    return feed;
  }

  static void ExpectResults(const EngineHarness& harness, int step, uint64_t seed) {
    const Tensor feed = Feed(step);
    const double* const x = feed.As<double>();
    for (int64_t i = 0; i < feed.num_elements(); ++i) {
      ASSERT_EQ(harness.fetched(step, 0).As<double>()[i], 2 * x[i] + 7) << "seed " << seed;
    }
    for (int64_t i = 0; i < kWidth; ++i) {
      double sum = 0;
      for (int m = 0; m < kNumMicrobatches; ++m) {
        sum += 2 * x[m * kWidth + i] + 100.0 * step + 10.0 * m + static_cast<double>(i);
      }
      ASSERT_EQ(harness.fetched(step, 1).As<double>()[i], sum) << "seed " << seed;
    }
  }

  kernels::KernelRegistry kernels_ = EngineTestKernels();
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
};

TEST_F(ExecutorCopiesTest, WhatUsesTheirOperandsWaitsForThem) {
  const CopyPlan plan = PlanWithCopies();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    options.firing_seed = seed % 3;
    options.trace_capacity = seed % 2 == 0 ? 0 : 1000;
    std::unique_ptr<EngineHarness> harness = Start(plan.plan, options);
    ASSERT_NE(harness, nullptr);
    for (int step = 0; step < kNumSteps; step += 2) {
      for (int i = 0; i < 2; ++i) harness->Submit({Feed(step + i)});
      ASSERT_TRUE(harness->RunUntilDone());
      for (int i = 0; i < 2; ++i) ExpectResults(*harness, step + i, seed);
    }
    EXPECT_EQ(harness->executor(0).DescribeGraphs(),
              "0 of 3 phases; others: copies to or from the host (3)");
  }
}

TEST_F(ExecutorCopiesTest, KernelsRunBesideThem) {
  const CopyPlan plan = PlanWithCopies();
  std::vector<int> num_beside(plan.plan.devices[0].actors.size());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    options.trace_capacity = 1000;
    std::unique_ptr<EngineHarness> harness = Start(plan.plan, options);
    ASSERT_NE(harness, nullptr);
    harness->Submit({Feed(0)});
    ASSERT_TRUE(harness->RunUntilDone());
    const std::vector<TraceEvent> trace = harness->executor(0).TakeTrace();
    for (const TraceEvent& copy : trace) {
      if (std::count(plan.copies.begin(), plan.copies.end(), copy.actor) == 0) continue;
      num_beside[copy.actor] +=
          std::any_of(trace.begin(), trace.end(), [&](const TraceEvent& event) {
            return event.actor != planner::kNone && event.actor != copy.actor &&
                   event.end_ns > copy.begin_ns && event.end_ns < copy.end_ns;
          });
    }
    // Every copy is in the trace: two a micro-batch and two of the update.
    EXPECT_EQ(std::count_if(trace.begin(), trace.end(),
                            [&](const TraceEvent& event) {
                              return std::count(plan.copies.begin(), plan.copies.end(),
                                                event.actor) > 0;
                            }),
              2 * kNumMicrobatches + 2);
  }
  EXPECT_GT(num_beside[plan.copies[0]], 0);
  EXPECT_GT(num_beside[plan.copies[1]], 0);
}

TEST_F(ExecutorCopiesTest, AFailureBeforeACopyEndsTheStepAlone) {
  const CopyPlan plan = PlanWithCopies("t.fail");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    std::unique_ptr<EngineHarness> harness = Start(plan.plan, options);
    ASSERT_NE(harness, nullptr);
    for (int step = 0; step < 4; ++step) {
      harness->Submit({Feed(step)});
      ASSERT_TRUE(harness->RunUntilDone());
    }
    EXPECT_EQ(harness->StepStatus(1), absl::OkStatus());
    EXPECT_THAT(std::string(harness->StepStatus(2).message()),
                HasSubstr("actor make on device 0, step 3, micro-batch 1: "));
    EXPECT_EQ(harness->StepStatus(3), absl::OkStatus());
  }
}

}  // namespace
}  // namespace penstock::actors
