// Phases that emulated devices launch as graphs: results, errors and reports are those of plain
// launches.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/executor.h"
#include "base/status_macros.h"
#include "base/strings.h"
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

class ExecutorGraphsTest : public ::testing::Test {
 protected:
  std::unique_ptr<EngineHarness> Start(const planner::Plan& plan, HarnessOptions options) {
    options.is_emulated = true;
    auto harness = EngineHarness::Create(plan, options, kernels_, policies_);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return harness.ok() ? *std::move(harness) : nullptr;
  }

  kernels::KernelRegistry kernels_ = EngineTestKernels();
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
};

Tensor GraphFeed(int64_t microbatches, double base) {
  Tensor feed({DType::kF64, {microbatches, kWidth}});
  for (int64_t i = 0; i < feed.num_elements(); ++i) feed.As<double>()[i] = base + i;
  return feed;
}

constexpr int kMicrobatches = 3;
constexpr uint32_t kSlots = 2;  // of what passes from F to B: not a divisor of the micro-batches

// F: h = x + iota + w. B: grad += h. Update: w += grad. What iota gives changes with the step and
// the micro-batch, and it is the kernels' only operand that does not lie in memory.
planner::Plan TrainingPlan(const std::string& last_op = "t.affine") {
  EnginePlanBuilder b(kMicrobatches);
  const uint32_t d = b.AddDevice();
  const uint32_t w = b.AddState(d, "w");
  const uint32_t x = b.AddRegister(d);
  const uint32_t draw = b.AddRegister(d);
  const uint32_t sum = b.AddRegister(d);
  const uint32_t h = b.AddRegister(d, kSlots);
  const uint32_t kept = b.AddRegister(d);
  const uint32_t grad = b.AddRegister(d, 1, false);
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t feed = b.AddFeed(d, "x", x);
  const uint32_t iota = b.AddKernel(d, "iota", "t.iota", {}, {draw});
  const uint32_t add = b.AddKernel(d, "add", "t.sum", {x, draw, w}, {sum});
  const uint32_t out = b.AddKernel(d, "out", last_op, {sum}, {h}, {{"step", 6}, {"microbatch", 1}});
  b.AddChannel(d, feed, add);
  b.AddChannel(d, iota, add);
  b.AddChannel(d, add, out);
  b.BeginPhase(d, "B", PhaseKind::kBackward);
  const uint32_t keep = b.AddKernel(d, "keep", "t.affine", {h}, {kept});
  const uint32_t bwd = b.AddKernel(d, "b", "t.sum", {kept}, {grad}, {}, true);
  b.AddChannel(d, keep, bwd);
  b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t fetch = b.AddFetch(d, "grad", grad);
  const uint32_t update = b.AddKernel(d, "update", "t.bump", {w, grad}, {w});
  b.AddChannel(d, out, keep, 1, 1, kSlots);
  b.AddChannel(d, bwd, fetch, 1, kMicrobatches, kMicrobatches);
  b.AddChannel(d, bwd, update, 1, kMicrobatches, kMicrobatches);
  b.AddChannel(d, update, add, kMicrobatches, 1, kMicrobatches, kMicrobatches);
  return b.Build();
}

constexpr int kSteps = 12;

// The results of all steps, some of which are under way together.
std::vector<double> Results(EngineHarness& harness) {
  std::vector<double> results;
  for (int step = 0; step < kSteps; step += 3) {
    for (int i = 0; i < 3; ++i) harness.Submit({GraphFeed(kMicrobatches, 1000 * (step + i))});
    EXPECT_TRUE(harness.RunUntilDone());
    for (int i = 0; i < 3; ++i) {
      const Tensor& fetched = harness.fetched(step + i, 0);
      results.insert(results.end(), fetched.As<double>(), fetched.As<double>() + kWidth);
    }
  }
  for (const double value : harness.Read(0, 0)) results.push_back(value);
  return results;
}

TEST_F(ExecutorGraphsTest, ResultsAreThoseOfPlainLaunches) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    options.captures_graphs = false;
    std::unique_ptr<EngineHarness> plain = Start(TrainingPlan(), options);
    options.captures_graphs = true;
    std::unique_ptr<EngineHarness> captured = Start(TrainingPlan(), options);
    ASSERT_TRUE(plain != nullptr && captured != nullptr);
    const std::vector<double> expected = Results(*plain);
    EXPECT_EQ(expected[0], (0 + 4 + 8) + (0 + 10 + 20));  // feeds and iota; w is 0
    ASSERT_EQ(Results(*captured), expected) << "seed " << seed;
    EXPECT_EQ(plain->executor(0).DescribeGraphs(), "0 of 3 phases; others: turned off (3)");
    EXPECT_EQ(captured->executor(0).DescribeGraphs(), "3 of 3 phases");
  }
}

// A trace has every act of its steps.
TEST_F(ExecutorGraphsTest, TracedStepsAreLaunchedActByAct) {
  HarnessOptions options;
  options.trace_capacity = 1000;
  options.trace_every = 4;
  std::unique_ptr<EngineHarness> harness = Start(TrainingPlan(), options);
  options.captures_graphs = false;
  options.trace_capacity = 0;
  std::unique_ptr<EngineHarness> plain = Start(TrainingPlan(), options);
  ASSERT_TRUE(plain != nullptr && harness != nullptr);
  EXPECT_EQ(Results(*harness), Results(*plain));
  EXPECT_EQ(harness->executor(0).DescribeGraphs(), "3 of 3 phases");
  // Steps 0, 4 and 8, with four acts in F, two in B and the update, and each phase itself.
  EXPECT_EQ(harness->executor(0).TakeTrace().size(), 3u * (kMicrobatches * (5 + 3) + 3));
}

// The kernel fails in a step that is launched as a graph, and is named as ever.
TEST_F(ExecutorGraphsTest, AnErrorInAGraphNamesActorStepAndMicrobatch) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    HarnessOptions options;
    options.seed = seed;
    std::unique_ptr<EngineHarness> harness = Start(TrainingPlan("t.fail"), options);
    ASSERT_NE(harness, nullptr);
    for (int step = 0; step < 7; ++step) {
      harness->Submit({GraphFeed(kMicrobatches, 1)});
      ASSERT_TRUE(harness->RunUntilDone());
      if (step < 6) {
        EXPECT_EQ(harness->StepStatus(step), absl::OkStatus());
      }
    }
    EXPECT_EQ(harness->executor(0).DescribeGraphs(), "3 of 3 phases");
    EXPECT_THAT(std::string(harness->StepStatus(6).message()),
                HasSubstr("actor out on device 0, step 7, micro-batch 1: "));
    // The graphs are good for further steps.
    harness->Submit({GraphFeed(kMicrobatches, 1)});
    ASSERT_TRUE(harness->RunUntilDone());
    EXPECT_EQ(harness->StepStatus(7), absl::OkStatus());
  }
}

// A kernel that cannot be captured: the emulated device refuses events in a graph.
class RecordingKernel : public kernels::Kernel {
 public:
  RecordingKernel(std::unique_ptr<kernels::Kernel> kernel, Device& device)
      : kernel_(std::move(kernel)), event_(device.CreateEvent()) {}
  absl::Status Run(const kernels::KernelArgs& args) override {
    args.stream->Record(event_.get());
    return kernel_->Run(args);
  }

 private:
  const std::unique_ptr<kernels::Kernel> kernel_;
  const std::unique_ptr<Event> event_;
};

TEST_F(ExecutorGraphsTest, APhaseThatCannotBeCapturedIsLaunchedActByAct) {
  HarnessOptions options;
  options.captures_graphs = false;
  std::unique_ptr<EngineHarness> plain = Start(TrainingPlan(), options);
  ASSERT_NE(plain, nullptr);
  const std::vector<double> expected = Results(*plain);
  options.captures_graphs = true;
  options.adapt_kernels = [](const kernels::KernelRegistry& registry) {
    kernels::KernelRegistry adapted;
    for (const std::string_view name : registry.Names()) {
      kernels::KernelDef def = *registry.Find(name);
      if (name == "t.iota") {
        def.create = [create = def.create](
                         const kernels::KernelSpec& spec, Device& device,
                         Stream& stream) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
          ASSIGN_OR_RETURN(std::unique_ptr<kernels::Kernel> kernel, create(spec, device, stream));
          return std::make_unique<RecordingKernel>(std::move(kernel), device);
        };
      }
      EXPECT_EQ(adapted.Add(std::string(name), std::move(def)), absl::OkStatus());
    }
    return adapted;
  };
  std::unique_ptr<EngineHarness> harness = Start(TrainingPlan(), options);
  ASSERT_NE(harness, nullptr);
  EXPECT_EQ(Results(*harness), expected);
  EXPECT_EQ(harness->executor(0).DescribeGraphs(),
            "2 of 3 phases; others: capturing F failed: graphs hold kernels and copies alone (1)");
}

}  // namespace
}  // namespace penstock::actors
