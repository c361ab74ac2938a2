// The engine of a process with real threads: what its communication executor is for, and what
// happens when it ends.

#include "actors/local_engine.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy.h"
#include "tests/support/engine_plan.h"
#include "transport/transport.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using testing::EnginePlanBuilder;
using ::testing::HasSubstr;
using testing::kWidth;

constexpr std::chrono::seconds kPatience{60};

class WaitingObserver final : public EngineObserver {
 public:
  void OnStepDone(const DeviceStepReport&) override {
    const std::lock_guard lock(mutex_);
    ++num_done_;
    changed_.notify_all();
  }
  void OnError(uint32_t, int64_t, const absl::Status& status) override { OnFailure(status); }
  void OnFailure(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    changed_.notify_all();
  }

  bool AwaitDone(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return num_done_ >= count || !failure_.ok(); });
  }
  absl::Status AwaitFailure() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return !failure_.ok(); });
    return failure_;
  }
  absl::Status failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_done_ = 0;
  absl::Status failure_;
};

// Computes until it is allowed to end.
class Gate {
 public:
  void Open() { is_open_.store(true); }
  // False if it was not opened in time.
  bool Pass() const {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!is_open_.load()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

 private:
  std::atomic<bool> is_open_{false};
};

// "t.open" opens the gate, "t.pass" computes until it is open.
class GateKernel final : public kernels::Kernel {
 public:
  GateKernel(Gate* gate, bool is_opener) : gate_(gate), is_opener_(is_opener) {}
  absl::Status Run(const kernels::KernelArgs&) override {
    if (is_opener_) {
      gate_->Open();
    } else if (!gate_->Pass()) {
      return absl::DeadlineExceededError("the gate was not opened");
    }
    return absl::OkStatus();
  }

 private:
  Gate* const gate_;
  const bool is_opener_;
};

kernels::KernelRegistry GateKernels(Gate* gate) {
  kernels::KernelRegistry registry = testing::EngineTestKernels();
  for (const bool is_opener : {true, false}) {
    kernels::KernelDef def;
    def.create = [gate, is_opener](const graph::KernelSpec&,
                                   Device&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
      return std::make_unique<GateKernel>(gate, is_opener);
    };
    EXPECT_EQ(registry.Add(is_opener ? "t.open" : "t.pass", std::move(def)), absl::OkStatus());
  }
  return registry;
}

// Three devices in a row. Device 1 starts an all_reduce with device 0 and then computes until
// device 2 opens the gate, which follows a message that device 0 sends after the all_reduce: it
// ends only if device 1 takes part in the all_reduce while it computes.
planner::Plan OverlapPlan() {
  EnginePlanBuilder b;
  for (int i = 0; i < 3; ++i) b.AddDevice();
  const uint32_t sum = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1},
                                           {kWidth / 2, kWidth - kWidth / 2}, true);
  for (const uint32_t d : {0u, 1u}) {
    const uint32_t in = b.AddRegister(d);
    const uint32_t out = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t made = b.AddKernel(d, "made", "t.iota", {}, {in});
    const uint32_t reduce = b.AddCollective(d, "sum", sum, in, out);
    b.AddChannel(d, made, reduce);
    if (d == 1) {
      const uint32_t busy = b.AddRegister(d);
      b.AddKernel(d, "busy", "t.pass", {}, {busy});
    } else {
      const uint32_t send = b.AddSend(d, "send", out, 2);
      b.AddChannel(d, reduce, send);
    }
  }
  const uint32_t got = b.AddRegister(2);
  const uint32_t opened = b.AddRegister(2);
  b.BeginPhase(2, "F", PhaseKind::kForward);
  const uint32_t recv = b.AddRecv(2, "recv", got, b.last_transfer());
  const uint32_t open = b.AddKernel(2, "open", "t.open", {got}, {opened});
  b.AddChannel(2, recv, open);
  return b.Build();
}

class LocalEngineTest : public ::testing::Test {
 protected:
  absl::Status Start(planner::Plan plan, std::unique_ptr<transport::Transport> transport) {
    plan_ = std::move(plan);
    LocalEngineOptions options;
    options.num_devices = static_cast<uint32_t>(plan_.devices.size());
    options.kernels = &kernels_;
    options.policies = &policies_;
    auto engine = LocalEngine::Start(plan_, std::move(transport), &observer_, options);
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    return absl::OkStatus();
  }

  static std::unique_ptr<transport::Transport> Inproc(uint32_t num_devices) {
    return transport::CreateInprocTransport({.num_devices = num_devices, .num_channels = 8});
  }

  Gate gate_;
  const kernels::KernelRegistry kernels_ = GateKernels(&gate_);
  const planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
  planner::Plan plan_;
  WaitingObserver observer_;
  std::unique_ptr<LocalEngine> engine_;
};

TEST_F(LocalEngineTest, ACollectiveEndsWhileItsDeviceComputes) {
  ASSERT_EQ(Start(OverlapPlan(), Inproc(3)), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  EXPECT_TRUE(observer_.AwaitDone(3));
  EXPECT_EQ(observer_.failure(), absl::OkStatus());
  gate_.Open();  // or the device would compute on
  engine_->Stop();
}

// Its communication executor fails as soon as it has nothing to do.
class ThrowingTransport final : public transport::Transport {
 public:
  explicit ThrowingTransport(std::unique_ptr<transport::Transport> inner)
      : inner_(std::move(inner)) {}
  std::string name() const override { return inner_->name(); }
  uint32_t num_devices() const override { return inner_->num_devices(); }
  absl::StatusOr<transport::Endpoint*> OpenEndpoint(uint32_t device) override {
    return inner_->OpenEndpoint(device);
  }
  void Wait(int, int) override { throw std::runtime_error("the network is down"); }
  transport::TransportStats stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<transport::Transport> inner_;
};

TEST_F(LocalEngineTest, TheEndOfTheCommunicationExecutorEndsTheSession) {
  ASSERT_EQ(Start(OverlapPlan(), std::make_unique<ThrowingTransport>(Inproc(3))), absl::OkStatus());
  EXPECT_THAT(std::string(observer_.AwaitFailure().message()),
              HasSubstr("the communication executor has ended"));
  gate_.Open();
  engine_->Stop();
}

}  // namespace
}  // namespace penstock::actors
