#include "actors/trace/register_use.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::kNone;
using planner::Lane;
using planner::PhaseKind;
using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kTensorBytes = 64;  // of testing::kWidth elements, aligned

TraceEvent Phase(uint32_t phase, uint32_t microbatch, int64_t begin_ns, int64_t end_ns,
                 int64_t step = 0) {
  return {0, kNone, phase, microbatch, step, begin_ns, end_ns};
}

// F and B, once a micro-batch, of which F stashes; capacity 2.
planner::Plan StashPlan() {
  EnginePlanBuilder b(2, "gpipe");
  b.AddDevice();
  const uint32_t stash = b.AddRegister(0, 2);
  const uint32_t out = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", "t.iota", {}, {stash});
  b.BeginPhase(0, "B", PhaseKind::kBackward);
  const uint32_t g = b.AddKernel(0, "g", "t.affine", {stash}, {out});
  b.AddChannel(0, f, g, 1, 1, 2);
  planner::Plan plan = b.Build();
  plan.devices[0].channels[0].reg = stash;
  return plan;
}

TEST(RegisterUseTest, CreditsAreInUseFromProducerToConsumer) {
  const planner::Plan plan = StashPlan();
  const std::vector<DeviceUse> uses = UseOverTime(
      plan, {Phase(0, 0, 0, 2), Phase(0, 1, 2, 4), Phase(1, 0, 5, 8), Phase(1, 1, 8, 11)});
  ASSERT_THAT(uses, SizeIs(1));
  ASSERT_THAT(uses[0].edges, SizeIs(1));
  const EdgeUse& edge = uses[0].edges[0];
  EXPECT_EQ(edge.producer_phase, 0u);
  EXPECT_EQ(edge.consumer_phase, 1u);
  EXPECT_EQ(edge.capacity, 2u);
  EXPECT_THAT(edge.credits_in_use,
              ElementsAre(UseSample{0, 1}, UseSample{2, 2}, UseSample{8, 1}, UseSample{11, 0}));
  EXPECT_THAT(edge.tokens_waiting,
              ElementsAre(UseSample{2, 1}, UseSample{4, 2}, UseSample{5, 1}, UseSample{8, 0}));
  const int64_t bytes = kTensorBytes;
  EXPECT_THAT(uses[0].channel_bytes, ElementsAre(UseSample{0, bytes}, UseSample{2, 2 * bytes},
                                                 UseSample{8, bytes}, UseSample{11, 0}));
}

TEST(RegisterUseTest, ValuesWithoutBothSidesDoNotCount) {
  const std::vector<DeviceUse> uses =
      UseOverTime(StashPlan(), {Phase(0, 0, 0, 2), Phase(1, 1, 8, 11), Phase(9, 0, 0, 1)});
  EXPECT_THAT(uses[0].edges, IsEmpty());
  EXPECT_THAT(uses[0].channel_bytes, IsEmpty());
}

TEST(RegisterUseTest, LaterStepsAreMatchedToo) {
  const std::vector<DeviceUse> uses =
      UseOverTime(StashPlan(), {Phase(0, 1, 100, 110, 7), Phase(1, 1, 120, 130, 7)});
  ASSERT_THAT(uses[0].edges, SizeIs(1));
  EXPECT_THAT(uses[0].edges[0].credits_in_use, ElementsAre(UseSample{100, 1}, UseSample{130, 0}));
}

// B adds to a gradient once a micro-batch, which the update reads once a step.
TEST(RegisterUseTest, AnAccumulatedRegisterIsHeldFromItsFirstWriter) {
  EnginePlanBuilder b(2, "gpipe");
  b.AddDevice();
  const uint32_t gradient = b.AddRegister(0, 1, /*per_microbatch=*/false);
  const uint32_t out = b.AddRegister(0, 1, /*per_microbatch=*/false);
  b.BeginPhase(0, "B", PhaseKind::kBackward);
  const uint32_t g = b.AddKernel(0, "g", "t.sum", {}, {gradient}, {}, /*accumulate=*/true);
  b.BeginPhase(0, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t u = b.AddKernel(0, "u", "t.affine", {gradient}, {out});
  b.AddChannel(0, g, u, 1, 2, 2);
  planner::Plan plan = b.Build();
  plan.devices[0].channels[0].reg = gradient;
  const std::vector<DeviceUse> uses =
      UseOverTime(plan, {Phase(0, 0, 0, 2), Phase(0, 1, 3, 5), Phase(1, 0, 6, 9)});
  ASSERT_THAT(uses[0].edges, SizeIs(1));
  EXPECT_THAT(uses[0].edges[0].credits_in_use,
              ElementsAre(UseSample{0, 1}, UseSample{3, 2}, UseSample{9, 0}));
  EXPECT_THAT(uses[0].channel_bytes,
              ElementsAre(UseSample{0, int64_t{kTensorBytes}}, UseSample{9, 0}));
}

// In a phase, the second value takes the place of the first, whose reader is done with it.
TEST(RegisterUseTest, BytesThatValuesShareCountOnce) {
  EnginePlanBuilder b(1);
  b.AddDevice();
  const uint32_t first = b.AddRegister(0);
  const uint32_t second = b.AddRegister(0);
  const uint32_t out = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", "t.iota", {}, {first});
  b.BeginPhase(0, "B", PhaseKind::kBackward);
  const uint32_t g = b.AddKernel(0, "g", "t.affine", {first}, {second});
  b.BeginPhase(0, "W", PhaseKind::kBackward);
  const uint32_t w = b.AddKernel(0, "w", "t.affine", {second}, {out});
  b.AddChannel(0, f, g);
  b.AddChannel(0, g, w);
  planner::Plan plan = b.Build();
  planner::DevicePlan& device = plan.devices[0];
  device.channels[0].reg = first;
  device.channels[1].reg = second;
  const std::vector<TraceEvent> events = {Phase(0, 0, 0, 2), Phase(1, 0, 2, 5), Phase(2, 0, 6, 9)};
  const int64_t bytes = kTensorBytes;
  EXPECT_THAT(UseOverTime(plan, events)[0].channel_bytes,
              ElementsAre(UseSample{0, bytes}, UseSample{2, 2 * bytes}, UseSample{5, bytes},
                          UseSample{9, 0}));
  device.registers[second].offset = device.registers[first].offset;
  EXPECT_THAT(UseOverTime(plan, events)[0].channel_bytes,
              ElementsAre(UseSample{0, bytes}, UseSample{9, 0}));
}

TEST(RegisterUseTest, CommunicationsUnderWayAreCounted) {
  EnginePlanBuilder b(1);
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t x = b.AddRegister(0);
  const uint32_t y = b.AddRegister(1);
  b.BeginPhase(0, "send", PhaseKind::kTransfer, Lane::kFloating);
  b.AddSend(0, "send", x, 1);
  b.BeginPhase(1, "recv", PhaseKind::kTransfer, Lane::kFloating);
  b.AddRecv(1, "recv", y, b.last_transfer());
  const planner::Plan plan = b.Build();
  const std::vector<DeviceUse> uses =
      UseOverTime(plan, {{0, 0, 0, 0, 0, 5, 9}, {1, 0, 0, 0, 0, 1, 9}, {1, 0, 0, 0, 1, 9, 12}});
  EXPECT_THAT(uses[0].communications, ElementsAre(UseSample{5, 1}, UseSample{9, 0}));
  EXPECT_THAT(uses[1].communications, ElementsAre(UseSample{1, 1}, UseSample{12, 0}));
}

}  // namespace
}  // namespace penstock::actors
