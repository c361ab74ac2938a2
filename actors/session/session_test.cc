// Whole plans on real threads.

#include "actors/session/session.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/error_origin.h"
#include "base/emulated_device.h"
#include "base/random.h"
#include "base/strings.h"
#include "kernels/emulated/emulated_kernels.h"
#include "tests/support/engine_plan.h"
#include "tests/support/test_policies.h"

namespace penstock::actors {
namespace {

using planner::Lane;
using planner::PhaseKind;
using testing::EnginePlanBuilder;
using testing::EngineTestKernels;
using ::testing::HasSubstr;
using testing::kWidth;

Tensor FeedOf(int64_t microbatches, double base) {
  Tensor feed({DType::kF64, {microbatches, kWidth}});
  for (int64_t i = 0; i < microbatches * kWidth; ++i) feed.As<double>()[i] = base + i;
  return feed;
}

Feeds FeedX(int64_t microbatches, double base) {
  Feeds feeds;
  feeds["x"] = FeedOf(microbatches, base);
  return feeds;
}

// Data-parallel training on `replicas` devices, all of one stage: each feeds the same x, reduces
// its gradient over all, and adds it to its replica of w.
planner::Plan DataParallelPlan(uint32_t replicas, uint32_t microbatches) {
  EnginePlanBuilder b(microbatches);
  std::vector<uint32_t> members;
  for (uint32_t d = 0; d < replicas; ++d) members.push_back(b.AddDevice());
  std::vector<int64_t> counts(replicas, 0);
  for (int64_t i = 0; i < kWidth; ++i) ++counts[i % replicas];
  const uint32_t reduce = b.AddCollectiveSpec(CollectiveKind::kAllReduce, members, counts, false);
  const uint32_t m = microbatches;
  for (uint32_t d = 0; d < replicas; ++d) {
    const uint32_t w = b.AddState(d, d == 0 ? "w" : StrCat("w", d), "ones");
    const uint32_t x = b.AddRegister(d);
    const uint32_t stash = b.AddRegister(d, 2);
    const uint32_t grad = b.AddRegister(d, 1, false);
    const uint32_t total = b.AddRegister(d, 1, false);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t feed = b.AddFeed(d, "x", x);
    const uint32_t f = b.AddKernel(d, "f", "t.sum", {w, x}, {stash});
    b.AddChannel(d, feed, f);
    b.BeginPhase(d, "B", PhaseKind::kBackward);
    const uint32_t bwd = b.AddKernel(d, "b", "t.sum", {stash}, {grad}, {}, true);
    b.BeginPhase(d, "reduce", PhaseKind::kTransfer, Lane::kFloating, false);
    const uint32_t all = b.AddCollective(d, "reduce.grad", reduce, grad, total);
    b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t update = b.AddKernel(d, "update", "t.bump", {w, total}, {w});
    if (d == 0) {
      const uint32_t fetch = b.AddFetch(d, "grad", total);
      b.AddChannel(d, all, fetch);
    }
    b.AddChannel(d, f, bwd, 1, 1, 2);
    b.AddChannel(d, bwd, all, 1, m, m);
    b.AddChannel(d, all, update);
    b.AddChannel(d, update, f, m, 1, m, m);
  }
  planner::Plan plan = b.Build();
  // The replicas are one state.
  for (uint32_t d = 1; d < replicas; ++d) {
    plan.states[0].placements.push_back(plan.states[d].placements[0]);
  }
  plan.states.resize(1);
  return plan;
}

// What the devices of a plan need in one process.
uint64_t MemoryOfAll(const planner::Plan& plan) {
  uint64_t num_bytes = 0;
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    num_bytes += MemoryOf(
                     plan, d, [](uint32_t, uint32_t) { return true; }, /*is_synchronous=*/true)
                     .total();
  }
  return num_bytes;
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() { options_.kernels = &kernels_; }

  absl::StatusOr<std::unique_ptr<Session>> Start(const planner::Plan& plan) {
    return Session::Start(plan, options_);
  }

  // Some steps of the data-parallel plan, two under way, against numbers worked out here.
  void CheckTraining(uint32_t replicas, uint32_t microbatches, int steps) {
    auto started = Start(DataParallelPlan(replicas, microbatches));
    ASSERT_TRUE(started.ok()) << started.status();
    Session& session = **started;
    double w = 1;
    ASSERT_TRUE(session.Submit(FeedX(microbatches, 0)).ok());
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) {
        ASSERT_TRUE(session.Submit(FeedX(microbatches, step + 1)).ok());
      }
      const auto result = session.Wait(step);
      ASSERT_TRUE(result.ok()) << result.status();
      double grad = 0;
      for (uint32_t m = 0; m < microbatches; ++m) grad += w + step + m * kWidth + 1;
      grad *= replicas;
      w += grad;
      const Tensor* fetched = result->Find("grad");
      ASSERT_NE(fetched, nullptr);
      ASSERT_EQ(fetched->As<double>()[1], grad);
      ASSERT_EQ(result->devices.size(), replicas);
    }
    const auto state = session.Fetch("w");
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(state->As<double>()[1], w);
  }

  // Setting and fetching a state.
  void CheckStates();

  void UseEmulatedDevices() {
    kernels_ = kernels::EmulatedKernels(EngineTestKernels());
    options_.create_device = [](uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
      return EmulatedDevice::Create({.seed = index});
    };
  }

  kernels::KernelRegistry kernels_ = EngineTestKernels();
  SessionOptions options_;
};

TEST_F(SessionTest, TrainsOnOneDevice) { CheckTraining(1, 4, 20); }

TEST_F(SessionTest, TrainsOnThreeDevices) { CheckTraining(3, 2, 50); }

TEST_F(SessionTest, TrainsOnEmulatedDevices) {
  UseEmulatedDevices();
  CheckTraining(1, 4, 20);
  CheckTraining(3, 3, 50);
}

TEST_F(SessionTest, StatesAreSetAndFetched) { CheckStates(); }

TEST_F(SessionTest, StatesAreSetAndFetchedOnEmulatedDevices) {
  UseEmulatedDevices();
  CheckStates();
}

void SessionTest::CheckStates() {
  auto session = Start(DataParallelPlan(2, 1));
  ASSERT_TRUE(session.ok()) << session.status();
  Tensor w({DType::kF64, {kWidth}});
  w.As<double>()[1] = 100;
  ASSERT_TRUE((*session)->SetState("w", w).ok());
  const auto result = (*session)->Run(FeedX(1, 0));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->Find("grad")->As<double>()[1], 2 * 101);
  EXPECT_EQ((*session)->Fetch("w")->As<double>()[1], 100 + 2 * 101);
  EXPECT_EQ((*session)->Fetch("v").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*session)->SetState("w", Tensor({DType::kF32, {kWidth}})).code(),
            absl::StatusCode::kInvalidArgument);
}

// A normal state split in two has the numbers of one that is whole.
TEST_F(SessionTest, InitialValuesDoNotDependOnTheSplit) {
  EnginePlanBuilder b;
  b.AddDevice();
  b.AddDevice();
  planner::Plan plan = b.Build();
  planner::StatePlan state;
  state.name = "w";
  state.type = {DType::kF32, {3, 6}};
  state.init = "normal";
  state.std = 0.5;
  state.stream = 9;
  for (uint32_t d = 0; d < 2; ++d) {
    plan.devices[d].arena_bytes = 256;
    plan.devices[d].registers.push_back({planner::RegisterClass::kState, false, 1, 64, 64});
    const auto columns = static_cast<int64_t>(d == 0 ? 4 : 2);
    state.placements.push_back(
        {d, 0, {DType::kF32, {3, columns}, {3, 6}, {0, d == 0 ? 0 : 4}, {0, 0}}});
  }
  plan.states.push_back(state);
  options_.seed = 77;
  auto session = Start(plan);
  ASSERT_TRUE(session.ok()) << session.status();
  const auto value = (*session)->Fetch("w");
  ASSERT_TRUE(value.ok());
  for (int64_t i = 0; i < 18; ++i) {
    EXPECT_EQ(value->As<float>()[i],
              static_cast<float>(0.5 * RandomNormal({77, 9, 0xffffffff}, i)));
  }
}

// Nor on the threads that draw them, nor on the pieces in which they are copied to a device.
TEST_F(SessionTest, InitialValuesDoNotDependOnThreads) {
  constexpr int64_t kCount = (int64_t{3} << 20) + 5;  // more than one piece
  EnginePlanBuilder b;
  b.AddDevice();
  planner::Plan plan = b.Build();
  constexpr uint64_t kBytes = (kCount + 15) / 16 * 16 * sizeof(float);
  plan.devices[0].arena_bytes = kBytes + 64;
  plan.devices[0].registers.push_back({planner::RegisterClass::kState, false, 1, 64, kBytes});
  planner::StatePlan state;
  state.name = "w";
  state.type = {DType::kF32, {kCount}};
  state.init = "normal";
  state.std = 0.5;
  state.stream = 9;
  state.placements.push_back({0, 0, {DType::kF32, {kCount}, {kCount}, {0}, {0}}});
  plan.states.push_back(state);
  for (const bool is_emulated : {false, true}) {
    for (const int num_threads : {1, 3}) {
      options_.threads_per_device = num_threads;
      options_.create_device = nullptr;
      if (is_emulated) {
        options_.create_device = [](uint32_t) -> absl::StatusOr<std::unique_ptr<Device>> {
          return EmulatedDevice::Create({.has_thread = true, .seed = 1});
        };
      }
      auto session = Start(plan);
      ASSERT_TRUE(session.ok()) << session.status();
      const auto value = (*session)->Fetch("w");
      ASSERT_TRUE(value.ok()) << value.status();
      const float* const w = value->As<float>();
      for (int64_t i = 0; i < kCount; i += i % 1024 == 0 ? 1 : 1023) {  // neighbours now and then
        ASSERT_EQ(w[i], static_cast<float>(0.5 * RandomNormal({options_.seed, 9, 0xffffffff},
                                                              static_cast<uint64_t>(i))))
            << i << ", " << num_threads << " threads";
      }
      EXPECT_NE(w[kCount - 1], 0);
    }
  }
}

TEST_F(SessionTest, RefusesWrongFeeds) {
  auto session = Start(DataParallelPlan(1, 2));
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_THAT(std::string((*session)->Run({}).status().message()),
              HasSubstr("the feed 'x' is missing"));
  EXPECT_THAT(std::string((*session)->Run(FeedX(3, 0)).status().message()),
              HasSubstr("the feed 'x' is f64[3, 4]; the plan wants f64[2, 4]"));
  Feeds feeds = FeedX(2, 0);
  feeds["y"] = FeedOf(2, 0);
  EXPECT_THAT(std::string((*session)->Run(feeds).status().message()),
              HasSubstr("there is no feed 'y'"));
  EXPECT_EQ((*session)->Wait(0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE((*session)->Run(FeedX(2, 0)).ok());
  EXPECT_EQ((*session)->Wait(0).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionTest, BoundsTheStepsUnderWay) {
  auto session = Start(DataParallelPlan(1, 1));
  ASSERT_TRUE(session.ok()) << session.status();
  for (int64_t step = 0; step < kMaxStepsInFlight; ++step) {
    ASSERT_TRUE((*session)->Submit(FeedX(1, 0)).ok());
  }
  EXPECT_EQ((*session)->Submit(FeedX(1, 0)).status().code(), absl::StatusCode::kResourceExhausted);
  for (int64_t step = 0; step < kMaxStepsInFlight; ++step) {
    EXPECT_TRUE((*session)->Wait(step).ok());
  }
  EXPECT_TRUE((*session)->Run(FeedX(1, 0)).ok());
}

TEST_F(SessionTest, FailingKernelIsNamedAndTheSessionGoesOn) {
  planner::Plan plan = DataParallelPlan(3, 2);
  for (planner::ActorPlan& actor : plan.devices[2].actors) {
    if (actor.name != "b") continue;
    plan.kernels[actor.kernel].op = "t.fail";
    plan.kernels[actor.kernel].attributes.Set("step", 3);
    plan.kernels[actor.kernel].attributes.Set("microbatch", 1);
  }
  auto session = Start(plan);
  ASSERT_TRUE(session.ok()) << session.status();
  for (int64_t step = 0; step < 6; ++step) {
    const auto result = (*session)->Run(FeedX(2, 0));
    if (step != 3) {
      EXPECT_TRUE(result.ok()) << result.status();
      continue;
    }
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(result.status().message(),
              "actor b on device 2, step 4, micro-batch 1: the disk is on fire");
  }
}

TEST_F(SessionTest, TimeoutHoldsTheWaitForGraph) {
  EnginePlanBuilder b;
  b.AddDevice();
  b.AddDevice(1);
  const uint32_t x0 = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "f", "t.iota", {}, {x0});
  b.plan().transfers.push_back({b.plan().num_channels++, 0, 1, 64, true});
  const uint32_t x1 = b.AddRegister(1);
  b.BeginPhase(1, "recv", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv = b.AddRecv(1, "recv.h", x1, 0);
  b.BeginPhase(1, "F", PhaseKind::kForward);
  const uint32_t use = b.AddKernel(1, "use", "t.affine", {x1}, {x1});
  b.AddChannel(1, recv, use);
  options_.timeout = absl::Milliseconds(200);
  options_.first_step = 200;  // goes on where another session has ended
  auto session = Start(b.Build());
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->Wait(0).status().message(), "step 201 is not under way");
  const absl::Status status = (*session)->Run({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("step 201 did not complete in 200ms"));
  EXPECT_THAT(message,
              HasSubstr("device 1: phase 'F', step 201, micro-batch 0, misses tokens from 'recv.h' "
                        "0 of 1"));
  EXPECT_THAT(message, HasSubstr("device 1: pending recv 'recv.h', step 201, micro-batch 0, from "
                                 "device 0"));
  EXPECT_THAT(message, HasSubstr("stage 1, policy '1f1b': step"));
  EXPECT_EQ((*session)->Run({}).status(), status);
  EXPECT_EQ((*session)->Fetch("w").status(), status);
}

// A kernel that waits until it is let go.
class GateKernel : public kernels::Kernel {
 public:
  GateKernel(std::atomic<bool>* is_entered, std::atomic<bool>* is_open)
      : is_entered_(is_entered), is_open_(is_open) {}
  absl::Status Run(const kernels::KernelArgs&) override {
    *is_entered_ = true;
    is_entered_->notify_all();
    is_open_->wait(false);
    return absl::OkStatus();
  }

 private:
  std::atomic<bool>* is_entered_;
  std::atomic<bool>* is_open_;
};

TEST_F(SessionTest, DeviceInsideAKernelIsNamed) {
  std::atomic<bool> is_entered = false;
  std::atomic<bool> is_open = false;
  kernels::KernelDef def;
  def.create = [&](const kernels::KernelSpec&, Device&,
                   Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
    return std::make_unique<GateKernel>(&is_entered, &is_open);
  };
  ASSERT_TRUE(kernels_.Add("gate", def).ok());
  EnginePlanBuilder b;
  b.AddDevice();
  const uint32_t x = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "h0.slow", "gate", {}, {x});
  options_.timeout = absl::Milliseconds(50);
  auto session = Start(b.Build());
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<int64_t> step = (*session)->Submit({});
  ASSERT_TRUE(step.ok()) << step.status();
  is_entered.wait(false);
  const absl::Status status = (*session)->Wait(*step).status();
  is_open = true;
  is_open.notify_all();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("device 0: does not answer; is in actor 'h0.slow'"));
}

TEST_F(SessionTest, KernelsArePreparedAsTheyAreLoaded) {
  std::atomic<bool> is_entered = false;
  std::atomic<bool> is_open = true;
  std::atomic<int> num_prepared = 0;
  kernels::KernelDef def;
  def.create = [&](const kernels::KernelSpec&, Device&,
                   Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
    return std::make_unique<GateKernel>(&is_entered, &is_open);
  };
  def.prepare = [&](const kernels::KernelSpec& spec) { num_prepared += spec.op == "gate" ? 1 : 0; };
  ASSERT_TRUE(kernels_.Add("gate", def).ok());
  EnginePlanBuilder b;
  b.AddDevice();
  const uint32_t x = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "h0.slow", "gate", {}, {x});
  auto session = Start(b.Build());
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(num_prepared, 1);
  EXPECT_FALSE(is_entered);
}

// Stage 1 could run its first forward and waits for the second, while stage 0 computes it for
// longer than the engine takes to notice a standstill.
TEST_F(SessionTest, APolicyThatWaitsForAnotherStageIsNotTakenForASilentOne) {
  std::atomic<bool> is_entered = false;
  std::atomic<bool> is_open = false;
  class SlowSecond : public GateKernel {
   public:
    using GateKernel::GateKernel;
    absl::Status Run(const kernels::KernelArgs& args) override {
      return args.microbatch == 1 ? GateKernel::Run(args) : absl::OkStatus();
    }
  };
  kernels::KernelDef def;
  def.create = [&](const kernels::KernelSpec&, Device&,
                   Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
    return std::make_unique<SlowSecond>(&is_entered, &is_open);
  };
  ASSERT_TRUE(kernels_.Add("gate", def).ok());
  EnginePlanBuilder b(2);
  b.AddDevice();
  b.AddDevice(1);
  const uint32_t x0 = b.AddRegister(0, 2);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", "gate", {}, {x0});
  b.BeginPhase(0, "send", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t send = b.AddSend(0, "send.h", x0, 1);
  b.AddChannel(0, f, send, 1, 1, 2);
  const uint32_t x1 = b.AddRegister(1, 2);
  b.BeginPhase(1, "recv", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv = b.AddRecv(1, "recv.h", x1, b.last_transfer());
  b.BeginPhase(1, "F", PhaseKind::kForward);
  const uint32_t use = b.AddKernel(1, "use", "t.affine", {x1}, {x1});
  b.AddChannel(1, recv, use, 1, 1, 2);
  planner::Plan plan = b.Build();
  plan.policy = "patient";
  planner::PolicyRegistry policies = planner::BuiltinPolicies();
  // Begins on a stage's forwards only when both are ready.
  const auto choose = [](const planner::StageContext&,
                         const planner::StageView& view) -> std::optional<planner::PhaseChoice> {
    const planner::ChunkView& chunk = view.chunks[0];
    if (chunk.issued[0] == 0 && chunk.ready[0] < 2) return std::nullopt;
    return planner::PhaseChoice{PhaseKind::kForward, chunk.issued[0]};
  };
  ASSERT_TRUE(policies.Add(std::make_unique<testing::DynamicPolicy>("patient", choose)).ok());
  options_.policies = &policies;
  auto session = Start(plan);
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<int64_t> step = (*session)->Submit({});
  ASSERT_TRUE(step.ok()) << step.status();
  is_entered.wait(false);
  absl::SleepFor(absl::Milliseconds(1600));  // three looks
  is_open = true;
  is_open.notify_all();
  const auto result = (*session)->Wait(*step);
  EXPECT_TRUE(result.ok()) << result.status();
}

TEST_F(SessionTest, WrongPoliciesAreNamed) {
  planner::PolicyRegistry policies = planner::BuiltinPolicies();
  // Chooses micro-batch 0 again and again.
  const auto stubborn = [](const planner::StageContext&, const planner::StageView&) {
    return planner::PhaseChoice{PhaseKind::kForward, 0};
  };
  ASSERT_TRUE(policies.Add(std::make_unique<testing::DynamicPolicy>("stubborn", stubborn)).ok());
  ASSERT_TRUE(policies.Add(testing::SilentPolicy()).ok());
  ASSERT_TRUE(policies.Add(testing::EmptyPolicy()).ok());
  options_.policies = &policies;
  planner::Plan plan = DataParallelPlan(2, 2);
  plan.policy = "stubborn";
  {
    auto session = Start(plan);
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_THAT(std::string((*session)->Run(FeedX(2, 0)).status().message()),
                HasSubstr("policy 'stubborn' chose F0 on stage 0 in step 1"));
    EXPECT_FALSE((*session)->Run(FeedX(2, 0)).ok());
  }
  plan.policy = "silent";
  {
    auto session = Start(plan);
    ASSERT_TRUE(session.ok()) << session.status();
    // Long before the step's time-out of ten minutes, and the reason first.
    const absl::Time begin = absl::Now();
    const std::string message((*session)->Run(FeedX(2, 0)).status().message());
    EXPECT_LT(absl::Now() - begin, absl::Minutes(1));
    EXPECT_THAT(message,
                ::testing::StartsWith("the policy chooses nothing though a phase could run"));
    EXPECT_THAT(message, HasSubstr("policy 'silent'"));
    EXPECT_THAT(message, HasSubstr("F issued 0 completed 0 ready 2"));
  }
  plan.policy = "empty";
  EXPECT_THAT(std::string(Start(plan).status().message()),
              ::testing::StartsWith("policy 'empty' chooses nothing for stage 0: its PlannedOrder "
                                    "is empty and it creates no scheduler"));
  plan.policy = "unheard of";
  EXPECT_THAT(std::string(Start(plan).status().message()),
              HasSubstr("there is no policy 'unheard of'; known: 1f1b, auto, chimera, "));
}

TEST_F(SessionTest, LoadErrorsAreReturned) {
  planner::Plan plan = DataParallelPlan(2, 1);
  plan.kernels[1].op = "t.refuse";
  EXPECT_EQ(Start(plan).status().message(), "actor f on device 0: no such thing in f64");
  plan.kernels[1].op = "t.unknown";
  EXPECT_EQ(Start(plan).status().message(),
            "actor f on device 0: a cpu device has no kernel for t.unknown");
  plan = DataParallelPlan(2, 1);
  options_.max_memory_bytes = 100;
  EXPECT_EQ(Start(plan).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionTest, StopEndsAWait) {
  planner::PolicyRegistry policies;
  ASSERT_TRUE(policies.Add(testing::SilentPolicy()).ok());
  options_.policies = &policies;
  planner::Plan plan = DataParallelPlan(2, 2);
  plan.policy = "silent";
  auto session = Start(plan);
  ASSERT_TRUE(session.ok()) << session.status();
  const auto step = (*session)->Submit(FeedX(2, 0));
  ASSERT_TRUE(step.ok());
  absl::Status status;
  std::thread waiter([&] { status = (*session)->Wait(*step).status(); });
  (*session)->Stop();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ((*session)->Submit(FeedX(2, 0)).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SessionTest, OneHundredInARow) {
  for (int i = 0; i < 100; ++i) CheckTraining(2, 2, 2);
}

TEST_F(SessionTest, ManyAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int k = 0; k < 5; ++k) CheckTraining(2, 2, 5);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SessionTest, StartedAndNeverRun) {
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Start(DataParallelPlan(3, 2)).ok());
}

// --- States that outlive a session ---------------------------------------------------------------

double GradOfStep(Session& session, int step) {
  const auto result = session.Run(FeedX(2, step));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->Find("grad")->As<double>()[3] : -1;
}

TEST_F(SessionTest, AnotherSessionGoesOnFromKeptStates) {
  const planner::Plan plan = DataParallelPlan(2, 2);
  std::vector<double> expected;
  {
    auto whole = Start(plan);
    ASSERT_TRUE(whole.ok()) << whole.status();
    for (int step = 0; step < 4; ++step) expected.push_back(GradOfStep(**whole, step));
  }
  {
    auto first = Start(plan);
    ASSERT_TRUE(first.ok()) << first.status();
    for (int step = 0; step < 2; ++step) EXPECT_EQ(GradOfStep(**first, step), expected[step]);
    const auto kept = (*first)->KeepStates(StateSelection::kAll);
    ASSERT_TRUE(kept.ok()) << kept.status();
    options_.states = *kept;
    GradOfStep(**first, 2);  // changes nothing that was kept
  }
  // A session that fails has no effect on what was kept either.
  options_.max_memory_bytes = 1;
  EXPECT_EQ(Start(plan).status().code(), absl::StatusCode::kResourceExhausted);
  options_.max_memory_bytes = 0;
  for (int i = 0; i < 2; ++i) {
    auto next = Start(plan);
    ASSERT_TRUE(next.ok()) << next.status();
    for (int step = 2; step < 4; ++step) EXPECT_EQ(GradOfStep(**next, step), expected[step]);
  }
}

// One copy of the states, whichever of two sessions runs.
TEST_F(SessionTest, TwoSessionsUseTheSameMemory) {
  const planner::Plan plan = DataParallelPlan(2, 2);
  std::vector<double> expected;
  auto whole = Start(plan);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (int step = 0; step < 6; ++step) expected.push_back(GradOfStep(**whole, step));
  EXPECT_FALSE((*whole)->shares_memory());

  const uint64_t num_bytes = MemoryOfAll(plan);
  auto first = Start(plan);
  ASSERT_TRUE(first.ok()) << first.status();
  for (int step = 0; step < 2; ++step) EXPECT_EQ(GradOfStep(**first, step), expected[step]);
  options_.memory_of = first->get();
  options_.max_memory_bytes = 2 * num_bytes - 1;  // not enough for two
  auto second = Start(plan);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE((*second)->shares_memory());
  EXPECT_EQ(GradOfStep(**second, 2), expected[2]);
  EXPECT_EQ(GradOfStep(**first, 3), expected[3]);
  EXPECT_EQ(GradOfStep(**second, 4), expected[4]);
  first->reset();  // the memory stays
  EXPECT_EQ(GradOfStep(**second, 5), expected[5]);
}

// What cannot share counts what the other one has.
TEST_F(SessionTest, SessionsThatCannotShareMemoryFitBesideEachOther) {
  const planner::Plan plan = DataParallelPlan(2, 2);
  const uint64_t num_bytes = MemoryOfAll(plan);
  auto first = Start(plan);
  ASSERT_TRUE(first.ok()) << first.status();
  options_.memory_of = first->get();
  planner::Plan larger = plan;
  for (planner::DevicePlan& device : larger.devices) device.arena_bytes += 64;
  planner::Plan renamed = plan;
  renamed.states[0].name = "other";
  planner::Plan moved = plan;
  planner::RegisterPlan& state = moved.devices[0].registers[moved.states[0].placements[0].reg];
  for (planner::RegisterPlan& reg : moved.devices[0].registers) {
    if (reg.slots != 1 || reg.slot_bytes != state.slot_bytes || reg.offset == state.offset)
      continue;
    std::swap(reg.offset, state.offset);
    break;
  }
  ASSERT_FALSE(moved == plan);
  for (const planner::Plan* other : {&larger, &renamed, &moved}) {
    options_.max_memory_bytes = 2 * num_bytes - 1;
    EXPECT_TRUE(absl::IsResourceExhausted(Start(*other).status()));
    options_.max_memory_bytes = 2 * num_bytes + 128;
    auto second = Start(*other);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_FALSE((*second)->shares_memory());
    ASSERT_TRUE((*second)->Run(FeedX(2, 0)).ok());
  }
}

// A session that stays open takes the states of another again and again.
TEST_F(SessionTest, AnOpenSessionTakesStates) {
  auto from = Start(DataParallelPlan(2, 1));
  auto to = Start(DataParallelPlan(2, 1));
  ASSERT_TRUE(from.ok() && to.ok());
  for (int i = 1; i < 4; ++i) {
    Tensor value({DType::kF64, {kWidth}});
    value.As<double>()[3] = i;
    ASSERT_TRUE((*from)->SetState("w", value).ok());
    const auto kept = (*from)->KeepStates(StateSelection::kAll);
    ASSERT_TRUE(kept.ok()) << kept.status();
    ASSERT_EQ((*to)->TakeStates(**kept), absl::OkStatus());
    EXPECT_EQ((*to)->Fetch("w")->As<double>()[3], i);
  }
  const auto nothing = (*from)->KeepStates(StateSelection::kParameters);
  EXPECT_EQ((*to)->TakeStates(**nothing).code(), absl::StatusCode::kNotFound);
  (*to)->Stop();
  EXPECT_EQ((*to)->TakeStates(**nothing).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SessionTest, KeptStatesAreReadFromOutside) {
  auto session = Start(DataParallelPlan(2, 1));
  ASSERT_TRUE(session.ok()) << session.status();
  Tensor value({DType::kF64, {kWidth}});
  value.As<double>()[3] = 7;
  ASSERT_TRUE((*session)->SetState("w", value).ok());
  const auto kept = (*session)->KeepStates(StateSelection::kAll);
  ASSERT_TRUE(kept.ok()) << kept.status();
  session->reset();
  const absl::StatusOr<Tensor> read = (*kept)->Read("w");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->As<double>()[3], 7);
  EXPECT_THAT((*kept)->Read("u").status().ToString(), HasSubstr("the state 'u' was not kept"));
}

// Parameters alone are no states of a plan that has none; those that a plan needs are named.
TEST_F(SessionTest, AStateThatWasNotKeptIsNamed) {
  const planner::Plan plan = DataParallelPlan(2, 1);
  auto session = Start(plan);
  ASSERT_TRUE(session.ok()) << session.status();
  const auto kept = (*session)->KeepStates(StateSelection::kParameters);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE((*kept)->states().empty());
  options_.states = *kept;
  const absl::Status status = Start(plan).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.ToString(), HasSubstr("the state 'w' was not kept"));
}

TEST_F(SessionTest, ErrorsOfStepsHaveTheirOrigin) {
  EnginePlanBuilder b(1);
  b.AddDevice();
  const uint32_t d = b.AddDevice();
  const uint32_t x = b.AddRegister(d);
  b.BeginPhase(d, "F", PhaseKind::kForward);
  b.AddKernel(d, "bad", "t.fail", {}, {x});
  auto session = Start(b.Build());
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::Status status = (*session)->Run({}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(OriginOf(status).device, 1);
  EXPECT_EQ(OriginOf(status).step, 0);
}

}  // namespace
}  // namespace penstock::actors
