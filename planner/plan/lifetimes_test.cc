#include "planner/plan/lifetimes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/plan/live_bytes.h"
#include "planner/plan/verify_plan.h"
#include "tests/support/plans.h"

namespace penstock::planner {
namespace {

using penstock::testing::DeviceBuilder;
using penstock::testing::EmptyPlan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kLifetimesBytes = 64;
constexpr uint32_t kF = 0;
constexpr uint32_t kB = 1;
constexpr uint32_t kUpdate = 2;
// Their first instances in a step of several micro-batches.
constexpr uint32_t kFirstF = 3;
constexpr uint32_t kFirstB = 4;

// The worked example of lifetimes.h: registers w, h, t and g; the last channel is that of w.
struct Example {
  Plan plan;
  uint32_t w = 0;
  uint32_t h = 0;
  uint32_t t = 0;
  uint32_t g = 0;
};

Example MakeExample(uint32_t m, std::vector<PhaseChoice> order) {
  Example example;
  Plan& plan = example.plan;
  plan = EmptyPlan(1, 1, m);
  plan.stages[0].order = std::move(order);
  DeviceBuilder device(&plan, 0);
  const uint32_t w = device.AddRegister(RegisterClass::kState, kLifetimesBytes, 1, false);
  const uint32_t h = device.AddRegister(RegisterClass::kChannel, kLifetimesBytes);
  const uint32_t t = device.AddRegister(RegisterClass::kWorkspace, kLifetimesBytes);
  const uint32_t g = device.AddRegister(RegisterClass::kChannel, kLifetimesBytes, 1, false);
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t forward = device.AddKernel("h.f", {w}, {h});
  device.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
  const uint32_t first = device.AddKernel("t.b", {h}, {t});
  const uint32_t second = device.AddKernel("g.b", {t}, {g});
  device.AddPhase("update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t update = device.AddKernel("w.update", {g}, {w});
  device.AddChannel({forward, first, h, 1, 1, 1, 0});
  device.Join(first, second, t);
  device.AddChannel({second, update, g, 1, m, m, 0});
  device.AddChannel({update, forward, w, m, 1, m, m});
  plan.states.push_back({});
  plan.states[0].name = "w";
  plan.states[0].type = {DType::kF32, {kLifetimesBytes / 4}};
  plan.states[0].init = "zeros";
  plan.states[0].placements = {
      {0, w, {DType::kF32, {kLifetimesBytes / 4}, {kLifetimesBytes / 4}, {0}, {0}, true}}};
  example.w = w;
  example.h = h;
  example.t = t;
  example.g = g;
  return example;
}

std::vector<PhaseChoice> Alternating(int m) {
  std::vector<PhaseChoice> order;
  for (int i = 0; i < m; ++i) {
    order.push_back({PhaseKind::kForward, i});
    order.push_back({PhaseKind::kBackward, i});
  }
  return order;
}

absl::Status VerifyLifetimes(const Plan& plan) {
  return VerifyPlan(plan, BuiltinPolicies()).status();
}

DeviceUses UsesOf(const Plan& plan) {
  return FindUses(plan.devices[0], plan.stages[0].order, plan.num_microbatches);
}

TEST(Lifetimes, AreThoseOfTheWorkedExample) {
  const Example example = MakeExample(1, Alternating(1));
  ASSERT_TRUE(VerifyLifetimes(example.plan).ok()) << VerifyLifetimes(example.plan);
  const DeviceUses uses = UsesOf(example.plan);
  EXPECT_TRUE(uses.registers[example.w][0].always);
  EXPECT_THAT(uses.registers[example.h][0].spans,
              ElementsAre(PhaseSpan{kF, 0, 0}, PhaseSpan{kB, 0, 0}));
  EXPECT_THAT(uses.registers[example.t][0].spans, ElementsAre(PhaseSpan{kB, 0, 1}));
  EXPECT_THAT(uses.registers[example.g][0].spans,
              ElementsAre(PhaseSpan{kB, 1, 1}, PhaseSpan{kUpdate, 0, 0}));
  for (const std::vector<Uses>& slots : uses.registers) EXPECT_THAT(slots[0].held, IsEmpty());
}

TEST(Lifetimes, BytesAreSharedOnlyWhereChannelsOrderTheSteps) {
  Example example = MakeExample(1, Alternating(1));
  DevicePlan& device = example.plan.devices[0];
  device.registers[example.g].offset = device.registers[example.h].offset;
  EXPECT_TRUE(VerifyLifetimes(example.plan).ok()) << VerifyLifetimes(example.plan);

  // The next step's F may write h while update reads g.
  device.channels.pop_back();
  EXPECT_THAT(UsesOf(example.plan).registers[example.g][0].held, ElementsAre(kF));
  EXPECT_THAT(std::string(VerifyLifetimes(example.plan).message()),
              HasSubstr("channel register 1 at bytes 64 to 128 and channel register 3 at bytes 64 "
                        "to 128 overlap, and no channel keeps both from being in use in device 0 "
                        "phase F"));
}

TEST(Lifetimes, AnAccumulatedValueLivesBetweenItsMicrobatches) {
  Example example = MakeExample(2, Alternating(2));
  ASSERT_TRUE(VerifyLifetimes(example.plan).ok()) << VerifyLifetimes(example.plan);
  const DeviceUses uses = UsesOf(example.plan);
  EXPECT_THAT(uses.registers[example.h][0].spans,
              ElementsAre(PhaseSpan{kF, 0, 0}, PhaseSpan{kB, 0, 0}, PhaseSpan{kFirstF, 0, 0},
                          PhaseSpan{kFirstB, 0, 0}));
  EXPECT_THAT(uses.registers[example.g][0].spans,
              ElementsAre(PhaseSpan{kF, 0, 0, false}, PhaseSpan{kB, 0, 1}, PhaseSpan{kUpdate, 0, 0},
                          PhaseSpan{kFirstB, 1, 1}));
  DevicePlan& device = example.plan.devices[0];
  device.registers[example.g].offset = device.registers[example.h].offset;
  EXPECT_THAT(std::string(VerifyLifetimes(example.plan).message()), HasSubstr("overlap"));
}

TEST(Lifetimes, ASlotIsFreeBetweenTheMicrobatchesThatHaveIt) {
  const std::vector<PhaseChoice> order = {{PhaseKind::kForward, 0},
                                          {PhaseKind::kForward, 1},
                                          {PhaseKind::kBackward, 0},
                                          {PhaseKind::kBackward, 1}};
  Example example = MakeExample(2, order);
  example.plan.devices[0].registers[example.h].slots = 2;
  // Slot 0 waits while F of micro-batch 1 runs, slot 1 while B of micro-batch 0 does.
  const std::vector<Uses> slots = UsesOf(example.plan).registers[example.h];
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_THAT(slots[0].spans,
              ElementsAre(PhaseSpan{kF, 0, 0}, PhaseSpan{kFirstF, 0, 0}, PhaseSpan{kFirstB, 0, 0}));
  EXPECT_THAT(slots[1].spans,
              ElementsAre(PhaseSpan{kF, 0, 0}, PhaseSpan{kB, 0, 0}, PhaseSpan{kFirstB, 0, 1}));

  // The next step deals three micro-batches out to two slots the other way round.
  Example uneven = MakeExample(3, Alternating(3));
  uneven.plan.devices[0].registers[uneven.h].slots = 2;
  EXPECT_EQ(UsesOf(uneven.plan).registers[uneven.h].size(), 1u);
}

TEST(Lifetimes, OnlyTheBytesOfASlotThatHasBeenReadAreShared) {
  Plan plan = EmptyPlan(1, 1, 2);
  plan.stages[0].order = {{PhaseKind::kForward, 0},
                          {PhaseKind::kForward, 1},
                          {PhaseKind::kBackward, 0},
                          {PhaseKind::kBackward, 1}};
  DeviceBuilder device(&plan, 0);
  const uint32_t h = device.AddRegister(RegisterClass::kChannel, kLifetimesBytes, 2);
  const uint32_t t = device.AddRegister(RegisterClass::kWorkspace, kLifetimesBytes);
  const uint32_t late = device.AddRegister(RegisterClass::kWorkspace, kLifetimesBytes);
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t forward = device.AddKernel("h.f", {}, {h});
  device.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
  const uint32_t first = device.AddKernel("t.b", {h}, {t});
  const uint32_t second = device.AddKernel("late.b", {t}, {late});
  device.AddChannel({forward, first, h, 1, 1, 2, 0});
  device.Join(first, second, t);
  ASSERT_EQ(VerifyLifetimes(plan), absl::OkStatus());
  std::vector<RegisterPlan>& registers = plan.devices[0].registers;
  registers[late].offset = registers[h].offset;
  EXPECT_EQ(VerifyLifetimes(plan), absl::OkStatus());
  // While B of micro-batch 0 writes it, slot 1 waits.
  registers[late].offset = registers[h].offset + kLifetimesBytes;
  EXPECT_THAT(std::string(VerifyLifetimes(plan).message()), HasSubstr("overlap"));
}

// The worked example with a floating phase that rounds the sum g to r and works on r before the
// update reads it.
struct RoundingExample {
  Example base;
  uint32_t r = 0;
};

RoundingExample MakeRoundingExample() {
  constexpr uint32_t kMicrobatches = 2;
  RoundingExample example{MakeExample(kMicrobatches, Alternating(kMicrobatches))};
  Plan& plan = example.base.plan;
  const uint32_t g = example.base.g;
  DeviceBuilder device(&plan, 0);
  const uint32_t r = device.AddRegister(RegisterClass::kChannel, kLifetimesBytes, 1, false);
  device.AddPhase("reduce", PhaseKind::kTransfer, Lane::kFloating, false);
  const uint32_t round = device.AddKernel("r.round", {g}, {r});
  const uint32_t reduce = device.AddKernel("r.reduce", {r}, {r});
  // The update reads r instead of g.
  std::vector<ActorPlan>& actors = plan.devices[0].actors;
  const auto update = static_cast<uint32_t>(
      std::find_if(actors.begin(), actors.end(),
                   [](const ActorPlan& actor) { return actor.name == "w.update"; }) -
      actors.begin());
  actors[update].inputs[0].reg = r;
  for (ChannelPlan& channel : plan.devices[0].channels) {
    if (channel.consumer == update) channel.consumer = round;
  }
  device.Join(round, reduce, r);
  device.AddChannel({reduce, update, r, 1, 1, 1, 0});
  example.r = r;
  return example;
}

TEST(Lifetimes, FloatingPhasesOfSeveralActorsRunBetweenTheirNeighbours) {
  RoundingExample example = MakeRoundingExample();
  Plan& plan = example.base.plan;
  ASSERT_EQ(VerifyLifetimes(plan), absl::OkStatus());
  const DeviceUses uses = UsesOf(plan);
  EXPECT_FALSE(uses.registers[example.base.g][0].always);
  // From where the last backward pass ends.
  EXPECT_THAT(uses.registers[example.r][0].spans,
              ElementsAre(PhaseSpan{kB, 1, 1}, PhaseSpan{kUpdate, 0, 0}));
  std::vector<RegisterPlan>& registers = plan.devices[0].registers;
  const uint64_t apart = registers[example.r].offset;
  registers[example.r].offset = registers[example.base.h].offset;
  EXPECT_EQ(VerifyLifetimes(plan), absl::OkStatus());
  for (const uint32_t other : {example.base.t, example.base.g}) {
    registers[example.r].offset = registers[other].offset;
    EXPECT_THAT(std::string(VerifyLifetimes(plan).message()), HasSubstr("overlap"));
  }
  registers[example.r].offset = apart;
  // The sum is there while later micro-batches have h.
  registers[example.base.g].offset = registers[example.base.h].offset;
  EXPECT_THAT(std::string(VerifyLifetimes(plan).message()), HasSubstr("overlap"));
}

TEST(Lifetimes, WhatAFloatingPhaseMakesForNobodyKeepsItsBytes) {
  RoundingExample example = MakeRoundingExample();
  std::vector<ChannelPlan>& channels = example.base.plan.devices[0].channels;
  std::erase_if(channels, [&](const ChannelPlan& channel) {
    return channel.reg == example.r && channel.producer != channel.consumer - 1;
  });
  const DeviceUses uses = UsesOf(example.base.plan);
  EXPECT_TRUE(uses.registers[example.base.g][0].always);
  EXPECT_TRUE(uses.registers[example.r][0].always);
}

TEST(Lifetimes, WithoutAStoredOrderNothingIsSharedAcrossPhases) {
  Example example = MakeExample(1, {});
  example.plan.policy = "1f1b";
  ASSERT_TRUE(VerifyLifetimes(example.plan).ok()) << VerifyLifetimes(example.plan);
  EXPECT_TRUE(UsesOf(example.plan).registers[example.h][0].always);
  DevicePlan& device = example.plan.devices[0];
  device.registers[example.g].offset = device.registers[example.h].offset;
  EXPECT_THAT(std::string(VerifyLifetimes(example.plan).message()), HasSubstr("overlap"));
}

TEST(Lifetimes, WorkspaceOfAnUnorderedLaneKeepsAwayFromTheOther) {
  Example example = MakeExample(1, Alternating(1));
  DevicePlan& device = example.plan.devices[0];
  // Nothing but g's channel orders B and update; t is not read before g is made.
  EXPECT_THAT(UsesOf(example.plan).registers[example.t][0].held, IsEmpty());
  device.channels.erase(device.channels.begin() + 1);  // between t.b and g.b
  EXPECT_THAT(UsesOf(example.plan).registers[example.h][0].held, ElementsAre(kUpdate));
}

// F: w and h. B: w, h and t, or w, t and g. update: w and g.
TEST(LiveBytes, CountsWhatIsWrittenAndStillToBeRead) {
  EXPECT_EQ(LeastArenaBytes(MakeExample(1, Alternating(1)).plan, 0), 3 * kLifetimesBytes);
  // g lives on while the second micro-batch has h and t.
  EXPECT_EQ(LeastArenaBytes(MakeExample(2, Alternating(2)).plan, 0), 4 * kLifetimesBytes);
  Example two_slots = MakeExample(2, {{PhaseKind::kForward, 0},
                                      {PhaseKind::kForward, 1},
                                      {PhaseKind::kBackward, 0},
                                      {PhaseKind::kBackward, 1}});
  two_slots.plan.devices[0].registers[two_slots.h].slots = 2;
  // Both of h and t; then h, t and g.
  EXPECT_EQ(LeastArenaBytes(two_slots.plan, 0), 4 * kLifetimesBytes);
}

// Slots of what passes between stages are live at all times.
TEST(LiveBytes, MessagesMayComeAndGoAtAnyTime) {
  Example example = MakeExample(1, Alternating(1));
  DevicePlan& device = example.plan.devices[0];
  device.registers[example.h].slots = 3;
  DeviceBuilder builder(&example.plan, 0);
  builder.AddPhase("send", PhaseKind::kForward, Lane::kFloating, true);
  builder.AddSend("h.send", 0, example.h);
  // w; 3 slots of h; t and g.
  EXPECT_EQ(LeastArenaBytes(example.plan, 0), 6 * kLifetimesBytes);
}

}  // namespace
}  // namespace penstock::planner
