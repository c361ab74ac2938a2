#include "planner/lower/device_program.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

class DeviceProgramTest : public ::testing::Test {
 protected:
  int Phase(PhaseKind kind, Lane lane, bool per_microbatch) {
    PhasePlan plan;
    plan.name = std::string(Name(kind));
    plan.kind = kind;
    plan.lane = lane;
    plan.per_microbatch = per_microbatch;
    return program_.AddPhase(std::move(plan));
  }
  int Forward() { return Phase(PhaseKind::kForward, Lane::kCompute, true); }
  int Backward() { return Phase(PhaseKind::kBackward, Lane::kCompute, true); }
  int Update() { return Phase(PhaseKind::kAfterStep, Lane::kPerStep, false); }

  int Buffer(uint64_t bytes, bool per_microbatch = true, int state = -1) {
    return program_.AddBuffer({bytes, per_microbatch, state, false});
  }

  void Actor(int phase, std::vector<int> inputs, std::vector<int> outputs,
             ActorKind kind = ActorKind::kKernel, uint64_t scratch_bytes = 0) {
    DraftActor actor;
    actor.plan.kind = kind;
    actor.inputs = std::move(inputs);
    actor.outputs = std::move(outputs);
    actor.scratch_bytes = scratch_bytes;
    program_.phase(phase).actors.push_back(std::move(actor));
  }

  DevicePlan Finish(int microbatches, int activations, int num_states = 0) {
    state_registers_.assign(num_states, kNone);
    return program_.Finish({microbatches, 0, nullptr, activations}, &state_registers_, &views_);
  }

  static ChannelPlan Channel(uint32_t producer, uint32_t consumer, uint32_t reg, uint32_t produce,
                             uint32_t consume, uint32_t capacity, uint32_t initial) {
    return {producer, consumer, reg, produce, consume, capacity, initial};
  }

  DeviceProgram program_;
  std::vector<uint32_t> state_registers_;
  std::vector<ViewOperand> views_;
};

TEST_F(DeviceProgramTest, WhatLivesInsideAPhaseIsPackedByLifetime) {
  const int f = Forward();
  const int a = Buffer(100);
  const int b = Buffer(100);
  const int c = Buffer(100);
  Actor(f, {}, {a});
  Actor(f, {a}, {b});
  Actor(f, {b}, {c});
  Actor(f, {c}, {});
  const DevicePlan plan = Finish(4, 4);
  EXPECT_EQ(plan.workspace_bytes, 256u);  // two of three at a time, 128 each
  EXPECT_EQ(plan.arena_bytes, 256u);
  for (const RegisterPlan& reg : plan.registers) {
    EXPECT_EQ(reg.register_class, RegisterClass::kWorkspace);
  }
  EXPECT_EQ(plan.registers[a].offset, plan.registers[c].offset);
  EXPECT_THAT(plan.channels, ElementsAre(Channel(0, 1, a, 1, 1, 1, 0), Channel(1, 2, b, 1, 1, 1, 0),
                                         Channel(2, 3, c, 1, 1, 1, 0)));
}

TEST_F(DeviceProgramTest, ScratchLivesWhileItsKernelRuns) {
  const int f = Forward();
  const int a = Buffer(64);
  Actor(f, {}, {a}, ActorKind::kKernel, 64);
  Actor(f, {a}, {}, ActorKind::kKernel, 64);
  const DevicePlan plan = Finish(1, 1);
  EXPECT_EQ(plan.workspace_bytes, 128u);
  EXPECT_NE(plan.actors[0].workspace_offset, plan.registers[a].offset);
  EXPECT_EQ(plan.actors[1].workspace_bytes, 64u);
}

TEST_F(DeviceProgramTest, AnActivationHasAsManySlotsAsThereAreCredits) {
  const int f = Forward();
  const int b = Backward();
  const int a = Buffer(64);
  Actor(f, {}, {a});
  Actor(b, {a}, {});
  const DevicePlan plan = Finish(8, 3);
  EXPECT_EQ(plan.registers[a].register_class, RegisterClass::kChannel);
  EXPECT_EQ(plan.registers[a].slots, 3u);
  EXPECT_THAT(plan.channels, ElementsAre(Channel(0, 1, a, 1, 1, 3, 0)));
}

// Stage 1 has two micro-batches in flight between F and B, one between B and W.
TEST_F(DeviceProgramTest, OrdersDecideHowManySlotsAnEdgeNeeds) {
  using enum PhaseKind;
  const StagePhase source = {0, {0, kForward}};
  const std::optional<ScheduleTimes> times =
      ScheduleTimes::Of({{{kForward, 0}, {kForward, 1}, {kForward, 2}},
                         {{kForward, 0},
                          {kForward, 1},
                          {kBackward, 0},
                          {kWeight, 0},
                          {kForward, 2},
                          {kBackward, 1},
                          {kWeight, 1},
                          {kBackward, 2},
                          {kWeight, 2}}},
                        3, {{source, {1, {0, kForward}}}});
  ASSERT_TRUE(times.has_value());
  const auto phase = [this](const char* name, PhaseKind kind, Lane lane = Lane::kCompute) {
    PhasePlan plan;
    plan.name = name;
    plan.kind = kind;
    plan.lane = lane;
    return program_.AddPhase(plan);
  };
  const auto received = [&](std::optional<StagePhase> from) {
    const int buffer = Buffer(64);
    program_.buffer(buffer).received = true;
    program_.buffer(buffer).source = from;
    return buffer;
  };
  const int receive = phase("recv", kTransfer, Lane::kFloating);
  const int f = phase("F", kForward);
  const int b = phase("B", kBackward);
  const int w = phase("W", kWeight);
  const int send = phase("send", kTransfer, Lane::kFloating);
  const int x = received(source);
  const int unknown = received(std::nullopt);
  const int y = Buffer(64);
  const int hidden = Buffer(64);
  const int gradient = Buffer(64);
  Actor(receive, {}, {x}, ActorKind::kRecv);
  Actor(receive, {}, {unknown}, ActorKind::kRecv);
  Actor(f, {x, unknown}, {y, hidden});
  Actor(b, {hidden}, {gradient});
  Actor(w, {gradient}, {});
  Actor(send, {y}, {}, ActorKind::kSend);
  state_registers_.clear();
  const DevicePlan plan = program_.Finish({3, 1, &*times}, &state_registers_, &views_);
  EXPECT_EQ(plan.registers[x].slots, 2u);         // the next arrives while F computes
  EXPECT_EQ(plan.registers[unknown].slots, 3u);   // as many as there are
  EXPECT_EQ(plan.registers[y].slots, 2u);         // the last leaves while F computes
  EXPECT_EQ(plan.registers[hidden].slots, 2u);    // F to B
  EXPECT_EQ(plan.registers[gradient].slots, 1u);  // B to W
}

TEST_F(DeviceProgramTest, AnAccumulatedGradientIsReadAfterAllMicrobatches) {
  const int b = Backward();
  const int u = Update();
  const int sum = Buffer(64, /*per_microbatch=*/false);
  Actor(b, {}, {sum});
  Actor(u, {sum}, {});
  const DevicePlan plan = Finish(4, 1);
  EXPECT_EQ(plan.registers[sum].slots, 1u);
  EXPECT_THAT(plan.channels, ElementsAre(Channel(0, 1, sum, 1, 4, 4, 0)));
}

TEST_F(DeviceProgramTest, AParameterIsThereBeforeTheFirstStep) {
  const int f = Forward();
  const int u = Update();
  const int w = Buffer(64, /*per_microbatch=*/false, /*state=*/0);
  Actor(f, {w}, {});
  Actor(u, {w}, {w});
  const DevicePlan plan = Finish(4, 1, /*num_states=*/1);
  EXPECT_EQ(plan.registers[w].register_class, RegisterClass::kState);
  EXPECT_EQ(plan.state_bytes, 64u);
  EXPECT_THAT(state_registers_, ElementsAre(w));
  EXPECT_THAT(plan.channels, ElementsAre(Channel(1, 0, w, 4, 1, 4, 4)));
}

TEST_F(DeviceProgramTest, TheLastReaderOnTheStreamGivesTheCreditAndEveryOneBesideIt) {
  const int f = Forward();
  const int b = Backward();
  const int a = Buffer(64);
  Actor(f, {}, {a});
  Actor(b, {a}, {});
  Actor(b, {a}, {}, ActorKind::kCollective);
  Actor(b, {a}, {});
  const DevicePlan plan = Finish(2, 1);
  // The other reader on the stream comes before the first that gives a credit back.
  EXPECT_THAT(plan.channels, ElementsAre(Channel(0, 2, a, 1, 1, 1, 0), Channel(0, 3, a, 1, 1, 1, 0),
                                         Channel(1, 2, kNone, 1, 1, 1, 0)));
}

TEST_F(DeviceProgramTest, WhatACollectiveReadsLivesUntilItIsKnownToBeDone) {
  const int f = Forward();
  const int a = Buffer(64);
  const int reduced = Buffer(64);
  const int other = Buffer(64);
  Actor(f, {}, {a});
  Actor(f, {a}, {reduced}, ActorKind::kCollective);
  Actor(f, {}, {other});
  Actor(f, {reduced, other}, {});
  const DevicePlan plan = Finish(1, 1);
  EXPECT_NE(plan.registers[a].offset, plan.registers[other].offset);
  EXPECT_NE(plan.registers[a].offset, plan.registers[reduced].offset);
  EXPECT_EQ(plan.workspace_bytes, 192u);
}

TEST_F(DeviceProgramTest, WhatACollectiveWritesIsFreeBeforeItMayStart) {
  // The collective starts when actor 0 has completed; actor 2 may still read then.
  const int f = Forward();
  const int a = Buffer(64);
  const int other = Buffer(64);
  const int gathered = Buffer(64);
  Actor(f, {}, {a});
  Actor(f, {}, {other});
  Actor(f, {other}, {});
  Actor(f, {a}, {gathered}, ActorKind::kCollective);
  Actor(f, {gathered}, {});
  const DevicePlan plan = Finish(1, 1);
  EXPECT_NE(plan.registers[gathered].offset, plan.registers[other].offset);
  EXPECT_EQ(plan.workspace_bytes, 192u);
}

TEST_F(DeviceProgramTest, FloatingPhasesShareNothing) {
  const int send = Phase(PhaseKind::kTransfer, Lane::kFloating, true);
  const int a = Buffer(64);
  Actor(send, {}, {a});
  Actor(send, {a}, {}, ActorKind::kSend);
  const DevicePlan plan = Finish(2, 1);
  EXPECT_EQ(plan.registers[a].register_class, RegisterClass::kChannel);
  EXPECT_EQ(plan.workspace_bytes, 0u);
}

TEST_F(DeviceProgramTest, LanesHaveTheirOwnWorkspace) {
  const int f = Forward();
  const int u = Update();
  const int a = Buffer(64);
  const int b = Buffer(64, /*per_microbatch=*/false);
  Actor(f, {}, {a});
  Actor(f, {a}, {});
  Actor(u, {}, {b});
  Actor(u, {b}, {});
  const DevicePlan plan = Finish(2, 1);
  EXPECT_EQ(plan.workspace_bytes, 128u);
  EXPECT_NE(plan.registers[a].offset, plan.registers[b].offset);
}

}  // namespace
}  // namespace penstock::planner
