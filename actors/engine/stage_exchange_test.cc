// Devices of a stage as if each were in a process of its own: one decides, the others follow.

#include "actors/engine/stage_exchange.h"

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/stall_detector.h"
#include "base/strings.h"
#include "tests/support/engine_harness.h"
#include "tests/support/engine_plan.h"
#include "tests/support/test_policies.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using ::testing::ElementsAre;
using testing::EngineHarness;
using testing::EnginePlanBuilder;
using ::testing::IsEmpty;
using testing::kWidth;

constexpr uint32_t kStageExchangeMicrobatches = 6;

// F of three devices of one stage add up what they have of each micro-batch, so they have to run
// their phases in one order; B do so again with what F has stashed, and add it up over the step.
planner::Plan StageSumPlan(const std::string& policy) {
  EnginePlanBuilder b(kStageExchangeMicrobatches, policy);
  const std::vector<uint32_t> devices = {0, 1, 2};
  for (size_t i = 0; i < devices.size(); ++i) b.AddDevice();
  const std::vector<int64_t> counts = {2, 1, 1};
  const uint32_t forward = b.AddCollectiveSpec(CollectiveKind::kAllReduce, devices, counts, true);
  const uint32_t backward = b.AddCollectiveSpec(CollectiveKind::kAllReduce, devices, counts, true);
  for (const uint32_t d : devices) {
    const uint32_t x = b.AddRegister(d);
    const uint32_t stash = b.AddRegister(d, kStageExchangeMicrobatches);
    const uint32_t y = b.AddRegister(d);
    const uint32_t sum = b.AddRegister(d, 1, false);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t iota = b.AddKernel(d, "iota", "t.iota", {}, {x});
    const uint32_t reduce = b.AddCollective(d, "reduce", forward, x, stash);
    b.AddChannel(d, iota, reduce);
    b.BeginPhase(d, "B", PhaseKind::kBackward);
    const uint32_t again = b.AddCollective(d, "reduce again", backward, stash, y);
    const uint32_t add = b.AddKernel(d, "add", "t.sum", {y}, {sum}, {}, true);
    b.AddChannel(d, again, add);
    b.AddChannel(d, reduce, again, 1, 1, kStageExchangeMicrobatches);
    b.BeginPhase(d, "after", PhaseKind::kAfterStep, planner::Lane::kPerStep, false);
    const uint32_t last =
        d == 0 ? b.AddFetch(d, "out", sum) : b.AddKernel(d, "sink", "t.affine", {sum}, {sum});
    b.AddChannel(d, add, last, 1, kStageExchangeMicrobatches, kStageExchangeMicrobatches);
  }
  return b.Build();
}

class StageExchangeTest : public ::testing::Test {
 protected:
  std::unique_ptr<EngineHarness> Start(const testing::HarnessOptions& options) {
    auto harness = EngineHarness::Create(StageSumPlan("any"), options, kernels_, policies_);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return harness.ok() ? *std::move(harness) : nullptr;
  }

  void AddPolicy(testing::DynamicPolicy::Next next) {
    ASSERT_TRUE(
        policies_.Add(std::make_unique<testing::DynamicPolicy>("any", std::move(next))).ok());
  }

  const kernels::KernelRegistry kernels_ = testing::EngineTestKernels();
  planner::PolicyRegistry policies_;
};

TEST_F(StageExchangeTest, AllDevicesFollowTheChoicesOfOne) {
  // Any phase that is ready, by chance: two that chose by themselves would wait for each other.
  std::mt19937_64 random(1);
  AddPolicy([&random](const planner::StageContext&,
                      const planner::StageView& view) -> std::optional<planner::PhaseChoice> {
    const auto& ready = view.chunks[0].ready;
    if (ready[0] == 0 && ready[1] == 0) return std::nullopt;
    const int kind = ready[0] == 0 || (ready[1] > 0 && random() % 2 == 0) ? 1 : 0;
    return planner::PhaseChoice{static_cast<PhaseKind>(kind), view.chunks[0].issued[kind]};
  });
  for (uint64_t seed = 0; seed < 200; ++seed) {
    testing::HarnessOptions options;
    options.seed = seed;
    options.is_split = true;
    options.is_emulated = seed % 2 == 1;
    options.acts_per_poll = seed % 3 == 0 ? 1 : 256;
    const std::unique_ptr<EngineHarness> harness = Start(options);
    ASSERT_NE(harness, nullptr);
    for (int step = 0; step < 4; ++step) harness->Submit({});
    ASSERT_TRUE(harness->RunUntilDone()) << "seed " << seed << "\n"
                                         << StrJoin(harness->Describe(), "\n");
    for (int step = 0; step < 4; ++step) {
      for (int i = 0; i < kWidth; ++i) {
        double sum = 0;
        for (uint32_t m = 0; m < kStageExchangeMicrobatches; ++m)
          sum += 9 * (100 * step + 10 * m + i);
        EXPECT_EQ(harness->fetched(step, 0).As<double>()[i], sum);
      }
    }
    EXPECT_THAT(harness->errors(), IsEmpty());
  }
}

TEST_F(StageExchangeTest, ThePolicySeesWhatAllDevicesHaveDone) {
  // F, and B once its F is complete on every device.
  AddPolicy([](const planner::StageContext&,
               const planner::StageView& view) -> std::optional<planner::PhaseChoice> {
    const planner::ChunkView& chunk = view.chunks[0];
    if (chunk.issued[1] < chunk.completed[0]) {
      return planner::PhaseChoice{PhaseKind::kBackward, chunk.issued[1]};
    }
    if (chunk.issued[0] > chunk.issued[1] || chunk.issued[0] == kStageExchangeMicrobatches)
      return std::nullopt;
    return planner::PhaseChoice{PhaseKind::kForward, chunk.issued[0]};
  });
  testing::HarnessOptions options;
  options.is_split = true;
  const std::unique_ptr<EngineHarness> harness = Start(options);
  ASSERT_NE(harness, nullptr);
  for (int step = 0; step < 3; ++step) harness->Submit({});
  ASSERT_TRUE(harness->RunUntilDone()) << StrJoin(harness->Describe(), "\n");
  EXPECT_EQ(harness->fetched(2, 0).As<double>()[0], 6 * 9 * 200 + 15 * 9 * 10);
  EXPECT_THAT(harness->errors(), IsEmpty());
}

TEST_F(StageExchangeTest, ItsMessagesCountAsCommunication) {
  const planner::Plan plan = StageSumPlan("any");
  EXPECT_EQ(DecidingDevice(plan.stages[0]), 0u);
  EXPECT_THAT(StagePeersOf(plan, 0), ElementsAre(1, 2));
  EXPECT_THAT(StagePeersOf(plan, 2), ElementsAre(0));
  const StallDetector detector(plan);
  // Two collectives; choices and counts of each peer.
  EXPECT_EQ(detector.NumCommunications(0, 1), 2u + 4);
  EXPECT_EQ(detector.NumCommunications(1, 2), 2u * (2 + 2));
  std::vector<ActivityReport> before = {{{5, 5, 5}, {10, 10, 10}, 4, {}, "stage 0"}};
  // Nothing is under way: receives of choices and counts wait for sends that have not started.
  before[0].communications = {2, 2, 2, 3, 2, 3, 2, 2, 3, 2, 2, 2, 3, 2};
  std::vector<ActivityReport> after = before;
  after[0].idle_polls = {20, 20, 20};
  EXPECT_TRUE(detector.FindStall(before, after).has_value());
  // Device 1 sends its counts.
  before[0].communications[9] = after[0].communications[9] = 3;
  EXPECT_FALSE(detector.FindStall(before, after).has_value());

  planner::Plan planned = plan;
  planned.stages[0].order = {{PhaseKind::kForward, 0, 0}};
  EXPECT_THAT(StagePeersOf(planned, 0), IsEmpty());
}

}  // namespace
}  // namespace penstock::actors
