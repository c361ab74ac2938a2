// The engine of a process with real threads: what its communication executor is for, and what
// happens when it ends.

#include "actors/session/local_engine.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/error_origin.h"
#include "actors/engine/wait_chain.h"
#include "base/emulated_device.h"
#include "base/strings.h"
#include "kernels/emulated/emulated_kernels.h"
#include "planner/policy/policy.h"
#include "tests/support/engine_plan.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/test_policies.h"
#include "tests/support/waiting_observer.h"
#include "transport/emulated/emulated_communicator.h"
#include "transport/transport.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using ::testing::AllOf;
using testing::EnginePlanBuilder;
using ::testing::HasSubstr;
using testing::kWidth;
using testing::WaitingObserver;

constexpr auto kPatience = WaitingObserver::kPatience;

// Computes until it is allowed to end, and always for long: an executor that has measured a short
// kernel keeps the endpoint.
class Gate {
 public:
  void Open() {
    is_open_.store(true);
    const absl::MutexLock lock(&mutex_);
    for (EmulatedDevice* device : waiting_) device->Wake();
  }
  void Close() { is_open_.store(false); }
  bool is_open() const { return is_open_.load(); }
  // Whose devices are told when it opens.
  void AddWaiting(EmulatedDevice* device) {
    const absl::MutexLock lock(&mutex_);
    waiting_.push_back(device);
  }
  void RemoveWaiting(EmulatedDevice* device) {
    const absl::MutexLock lock(&mutex_);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), device));
  }
  // False if it was not opened in time.
  bool Pass() const {
    const auto begin = std::chrono::steady_clock::now();
    auto now = begin;
    while (!is_open_.load() || now < begin + kMinTime) {
      if (now > begin + kPatience) return false;
      now = std::chrono::steady_clock::now();
    }
    return true;
  }

 private:
  static constexpr auto kMinTime = std::chrono::milliseconds(1);

  std::atomic<bool> is_open_{false};
  absl::Mutex mutex_;
  std::vector<EmulatedDevice*> waiting_ ABSL_GUARDED_BY(mutex_);
};

// "t.open" opens the gate, "t.pass" computes until it is open.
class EngineGateKernel final : public kernels::Kernel {
 public:
  EngineGateKernel(Gate* gate, bool is_opener) : gate_(gate), is_opener_(is_opener) {}
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

// "t.pass" on an emulated device. A kernel there holds up the device's copies, which on a GPU it
// does not; this one looks at the gate from time to time.
class EmulatedGateKernel final : public kernels::Kernel {
 public:
  EmulatedGateKernel(Gate* gate, EmulatedDevice* device, EmulatedStream* stream)
      : gate_(gate), device_(device), stream_(stream) {
    gate_->AddWaiting(device_);
  }
  ~EmulatedGateKernel() override { gate_->RemoveWaiting(device_); }
  absl::Status Run(const kernels::KernelArgs& args) override {
    EmulatedRun& run = stream_->BeginLaunch();
    run.retry = [](void* gate, EmulatedRun&, bool has_error, absl::Status*) {
      return has_error || static_cast<Gate*>(gate)->is_open();
    };
    run.context = gate_;
    run.pointers.clear();
    run.launch = args.launch;
    stream_->EndLaunch();
    return absl::OkStatus();
  }

 private:
  Gate* const gate_;
  EmulatedDevice* const device_;
  EmulatedStream* const stream_;
};

kernels::KernelRegistry GateKernels(Gate* gate) {
  kernels::KernelRegistry registry = testing::EngineTestKernels();
  for (const bool is_opener : {true, false}) {
    kernels::KernelDef def;
    def.create = [gate, is_opener](const graph::KernelSpec&, Device&,
                                   Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
      return std::make_unique<EngineGateKernel>(gate, is_opener);
    };
    EXPECT_EQ(registry.Add(is_opener ? "t.open" : "t.pass", std::move(def)), absl::OkStatus());
  }
  return registry;
}

kernels::KernelRegistry EmulatedGateKernels(Gate* gate) {
  const kernels::KernelRegistry all = kernels::EmulatedKernels(GateKernels(gate));
  kernels::KernelRegistry registry;
  for (const std::string_view name : all.Names()) {
    kernels::KernelDef def = *all.Find(name);
    if (name == "t.pass") {
      def.create = [gate](const graph::KernelSpec&, Device& device,
                          Stream& stream) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
        return std::make_unique<EmulatedGateKernel>(gate, dynamic_cast<EmulatedDevice*>(&device),
                                                    dynamic_cast<EmulatedStream*>(&stream));
      };
    }
    EXPECT_EQ(registry.Add(std::string(name), std::move(def)), absl::OkStatus());
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

// Counts the launches of the kernels that it wraps.
class CountingKernel final : public kernels::Kernel {
 public:
  CountingKernel(std::unique_ptr<kernels::Kernel> kernel, std::atomic<int>* count)
      : kernel_(std::move(kernel)), count_(count) {}
  absl::Status Run(const kernels::KernelArgs& args) override {
    const absl::Status status = kernel_->Run(args);
    count_->fetch_add(1);
    return status;
  }

 private:
  const std::unique_ptr<kernels::Kernel> kernel_;
  std::atomic<int>* const count_;
};

kernels::KernelRegistry CountingKernels(const kernels::KernelRegistry& registry,
                                        std::atomic<int>* count) {
  kernels::KernelRegistry counting;
  for (const std::string_view name : registry.Names()) {
    kernels::KernelDef def = *registry.Find(name);
    def.create = [create = def.create, count](
                     const graph::KernelSpec& spec, Device& device,
                     Stream& stream) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
      auto kernel = create(spec, device, stream);
      if (!kernel.ok()) return kernel.status();
      return std::make_unique<CountingKernel>(*std::move(kernel), count);
    };
    EXPECT_EQ(counting.Add(std::string(name), std::move(def)), absl::OkStatus());
  }
  return counting;
}

class LocalEngineTest : public ::testing::Test {
 protected:
  // From here on devices are emulated, and launches are counted.
  void UseEmulatedDevices() {
    kernels_ = CountingKernels(EmulatedGateKernels(&gate_), &num_launches_);
    create_device_ = [](uint32_t index) { return EmulatedDevice::Create({.seed = index}); };
  }

  absl::Status Start(planner::Plan plan, std::unique_ptr<transport::Transport> transport,
                     EngineObserver* observer = nullptr) {
    plan_ = std::move(plan);
    LocalEngineOptions options;
    options.create_device = create_device_;
    options.create_communicator = create_communicator_;
    options.check_results = check_results_;
    options.max_memory_bytes = max_memory_bytes_;
    options.timeout = absl::FromChrono(kPatience);
    options.num_devices = static_cast<uint32_t>(plan_.devices.size());
    options.kernels = &kernels_;
    options.kernels_by_kind = kernels_by_kind_;
    options.policies = &policies_;
    auto engine = LocalEngine::Start(plan_, std::move(transport),
                                     observer == nullptr ? &observer_ : observer, options);
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    return absl::OkStatus();
  }

  uint64_t max_memory_bytes_ = 0;

  static std::unique_ptr<transport::Transport> Inproc(uint32_t num_devices) {
    return transport::CreateInprocTransport({.num_devices = num_devices, .num_channels = 8});
  }

  Gate gate_;
  std::atomic<int> num_launches_{0};
  kernels::KernelRegistry kernels_ = GateKernels(&gate_);
  kernels::KernelsByKind kernels_by_kind_;
  DeviceFactory create_device_;
  transport::CommunicatorFactory create_communicator_;
  kernels::ResultCheck check_results_ = kernels::ResultCheck::kNone;
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
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

// Whatever the plan predicts, and in steps whose acts are not measured any more.
TEST_F(LocalEngineTest, ADeviceLeavesTheEndpointBeforeALongKernel) {
  planner::Plan plan = OverlapPlan();
  for (planner::DevicePlan& device : plan.devices) {
    for (planner::PhasePlan& phase : device.phases) phase.predicted_s = 1e-9;
  }
  ASSERT_EQ(Start(std::move(plan), Inproc(3)), absl::OkStatus());
  for (int step = 0; step < 4; ++step) {
    engine_->Submit(step, std::make_shared<StepBuffers>());
    EXPECT_TRUE(observer_.AwaitDone(3 * (step + 1)));
    ASSERT_EQ(observer_.failure(), absl::OkStatus()) << "step " << step;
    gate_.Close();
  }
  engine_->Stop();
}

TEST_F(LocalEngineTest, ACollectiveEndsWhileItsEmulatedDeviceComputes) {
  UseEmulatedDevices();
  ASSERT_EQ(Start(OverlapPlan(), Inproc(3)), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  EXPECT_TRUE(observer_.AwaitDone(3));
  EXPECT_EQ(observer_.failure(), absl::OkStatus());
  gate_.Open();  // or the device would compute on
  engine_->Stop();
}

// Each device has the kernels of its kind, and the host runs the collectives.
TEST_F(LocalEngineTest, DevicesOfSeveralKindsHaveTheirKernels) {
  kernels_by_kind_["emulated"] = std::make_shared<const kernels::KernelRegistry>(
      CountingKernels(EmulatedGateKernels(&gate_), &num_launches_));
  create_device_ = [](uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
    if (index == 1) return EmulatedDevice::Create({.seed = index});
    return nullptr;
  };
  const planner::Plan plan = OverlapPlan();
  const auto num_kernels =
      std::count_if(plan.devices[1].actors.begin(), plan.devices[1].actors.end(),
                    [](const auto& actor) { return actor.kind == planner::ActorKind::kKernel; });
  ASSERT_EQ(Start(plan, Inproc(3)), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  EXPECT_TRUE(observer_.AwaitDone(3));
  EXPECT_EQ(observer_.failure(), absl::OkStatus());
  EXPECT_EQ(num_launches_, num_kernels);
  gate_.Open();
  engine_->Stop();
}

// The others would wait for the CPU.
TEST_F(LocalEngineTest, CollectivesOnStreamsNeedAsynchronousDevices) {
  UseEmulatedDevices();
  create_device_ = [](uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
    if (index > 0) return EmulatedDevice::Create({.seed = index});
    return nullptr;
  };
  create_communicator_ = transport::CreateEmulatedCommunicators();
  const absl::Status status = Start(OverlapPlan(), Inproc(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("device 0 of kind 'cpu' cannot run collectives on streams"));
}

// Device 0 opens the gate in the phase whose all_reduce waits for device 1, which computes until
// then: only the reader of the all_reduce's result waits for it.
TEST_F(LocalEngineTest, ACollectiveOnAStreamHoldsUpItsReadersAlone) {
  EnginePlanBuilder b;
  for (int i = 0; i < 2; ++i) b.AddDevice();
  const uint32_t sum = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1},
                                           {kWidth / 2, kWidth - kWidth / 2}, true);
  for (const uint32_t d : {0u, 1u}) {
    const uint32_t in = b.AddRegister(d);
    const uint32_t out = b.AddRegister(d);
    const uint32_t used = b.AddRegister(d);
    const uint32_t other = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t made = b.AddKernel(d, "made", d == 0 ? "t.iota" : "t.pass", {}, {in});
    const uint32_t reduce = b.AddCollective(d, "sum", sum, in, out);
    b.AddChannel(d, made, reduce);
    if (d == 0) b.AddKernel(d, "open", "t.open", {}, {other});
    const uint32_t use = b.AddKernel(d, "use", "t.affine", {out}, {used});
    b.AddChannel(d, reduce, use);
  }
  UseEmulatedDevices();
  create_communicator_ = transport::CreateEmulatedCommunicators();
  ASSERT_EQ(Start(b.Build(), Inproc(2)), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  EXPECT_TRUE(observer_.AwaitDone(2));
  EXPECT_EQ(observer_.failure(), absl::OkStatus());
  gate_.Open();
  engine_->Stop();
}

// Device 1 computes on the first message until the gate opens, and has no register for another one:
// a send waits on the stream of device 0 as the session ends.
TEST_F(LocalEngineTest, ASessionEndsWhileAMessageWaits) {
  EnginePlanBuilder b(/*num_microbatches=*/4);
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t made = b.AddRegister(0, 4);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t make = b.AddKernel(0, "make", "t.iota", {}, {made});
  b.BeginPhase(0, "send", PhaseKind::kTransfer, planner::Lane::kFloating);
  b.AddChannel(0, make, b.AddSend(0, "send", made, 1), 1, 1, 4);
  const uint32_t got = b.AddRegister(1);
  const uint32_t used = b.AddRegister(1);
  b.BeginPhase(1, "recv", PhaseKind::kTransfer, planner::Lane::kFloating);
  const uint32_t recv = b.AddRecv(1, "recv", got, b.last_transfer());
  b.BeginPhase(1, "F", PhaseKind::kForward);
  b.AddChannel(1, recv, b.AddKernel(1, "busy", "t.pass", {got}, {used}), 1, 1, 1);
  UseEmulatedDevices();
  create_communicator_ = transport::CreateEmulatedCommunicators();
  ASSERT_EQ(Start(b.Build(), Inproc(2)), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  // Four kernels of device 0 and one of device 1.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (num_launches_.load() < 5 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GE(num_launches_.load(), 5);
  std::thread stop([this] { engine_->Stop(); });
  gate_.Open();
  stop.join();
  EXPECT_EQ(observer_.failure(), absl::OkStatus());
}

// F0 computes until the gate opens, and no event of it is done: F0 B0 F1 B1 are launched, and no
// more, as a lane runs ahead by four phase instances.
TEST_F(LocalEngineTest, PhasesAreLaunchedBehindOneThatRuns) {
  constexpr uint32_t kMicrobatches = 16;
  constexpr int kAhead = 4;
  EnginePlanBuilder b(kMicrobatches);
  const uint32_t d = b.AddDevice();
  const uint32_t x = b.AddRegister(d);
  const uint32_t y = b.AddRegister(d);
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(d, "f", "t.pass", {}, {x});
  b.BeginPhase(d, "B", PhaseKind::kBackward);
  const uint32_t g = b.AddKernel(d, "b", "t.affine", {x}, {y});
  b.AddChannel(d, f, g);
  UseEmulatedDevices();
  ASSERT_EQ(Start(b.Build(), Inproc(1)), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (num_launches_.load() < kAhead && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  // An executor that has been asked has polled since.
  engine_->Describe(absl::Seconds(60));
  engine_->Describe(absl::Seconds(60));
  EXPECT_EQ(num_launches_.load(), kAhead);
  std::vector<std::string> waits;
  for (const WaitDescription& wait : engine_->Describe(absl::Seconds(60))) {
    waits.push_back(wait.text);
  }
  EXPECT_THAT(StrJoin(waits, "\n"),
              HasSubstr("device 0: the stream has not completed phase 'F', step 1, micro-batch 0"));
  gate_.Open();
  EXPECT_TRUE(observer_.AwaitDone(1));
  EXPECT_EQ(observer_.failure(), absl::OkStatus());
  EXPECT_EQ(num_launches_.load(), 2 * static_cast<int>(kMicrobatches));
  engine_->Stop();
}

// Device 0 computes until the gate is open, and device 1 waits for what it sends then.
TEST_F(LocalEngineTest, TheInspectorSeesWhatDevicesDo) {
  ASSERT_EQ(Start(testing::SendingPlan("t.pass"), Inproc(2)), absl::OkStatus());
  const std::shared_ptr<Inspector> inspector = engine_->inspector();
  using State = DeviceSnapshot::State;
  const auto look = [&] {
    absl::StatusOr<EngineSnapshot> snapshot = inspector->Inspect(absl::Seconds(60));
    EXPECT_EQ(snapshot.status(), absl::OkStatus());
    return snapshot.ok() ? *std::move(snapshot) : EngineSnapshot();
  };
  EngineSnapshot idle = look();
  ASSERT_EQ(idle.devices.size(), 2u);
  EXPECT_EQ(idle.devices[0].state, State::kIdle);
  ASSERT_EQ(idle.processes.size(), 1u);
  EXPECT_GT(idle.processes[0].resident_bytes, 0u);
  EXPECT_EQ(idle.processes[0].num_devices, 2u);

  engine_->Submit(0, std::make_shared<StepBuffers>());
  EngineSnapshot hanging = look();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline &&
         (hanging.devices[0].running != "make" || hanging.devices[1].state != State::kWaiting ||
          hanging.devices[1].waits.empty())) {
    hanging = look();
  }
  EXPECT_EQ(hanging.devices[0].state, State::kRunning);
  const WaitChains chains = FindWaitChains(plan_, hanging.devices);
  EXPECT_THAT(chains.roots, ::testing::ElementsAre(0));
  EXPECT_THAT(chains.waits,
              ::testing::Contains(ActorWait{"recv", 1, "device 0, recv of 'recv'", {0}}));
  gate_.Open();
  EXPECT_TRUE(observer_.AwaitDone(2));
  const EngineSnapshot done = look();
  for (const DeviceSnapshot& device : done.devices) {
    EXPECT_EQ(device.state, State::kIdle);
    EXPECT_EQ(device.step, 1);
    EXPECT_THAT(device.communications, ::testing::ElementsAre(2));
  }
  EXPECT_GT(done.devices[1].transfer_ns, 0);
  engine_->Stop();
  EXPECT_EQ(inspector->Inspect(absl::Seconds(1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(LocalEngineTest, ResultsOfAnAsynchronousDeviceCannotBeChecked) {
  UseEmulatedDevices();
  check_results_ = kernels::ResultCheck::kEveryStep;
  EXPECT_THAT(std::string(Start(OverlapPlan(), Inproc(3)).message()),
              HasSubstr("the results of kernels on devices of kind 'emulated' cannot be checked"));
}

// Something still reads and writes memory when the engine and the transport have gone.
class KeepingTransport final : public transport::Transport {
 public:
  KeepingTransport(std::unique_ptr<transport::Transport> inner, std::shared_ptr<const void>* owner)
      : inner_(std::move(inner)), owner_(owner) {}
  std::string name() const override { return inner_->name(); }
  uint32_t num_devices() const override { return inner_->num_devices(); }
  absl::StatusOr<transport::Endpoint*> OpenEndpoint(uint32_t device) override {
    return inner_->OpenEndpoint(device);
  }
  void Hold(std::shared_ptr<const void> owner, uint64_t num_bytes) override {
    EXPECT_EQ(*owner_, nullptr);
    EXPECT_GT(num_bytes, 0);
    *owner_ = std::move(owner);
  }
  transport::TransportStats stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<transport::Transport> inner_;
  std::shared_ptr<const void>* const owner_;
};

TEST_F(LocalEngineTest, MemoryStaysWhileTheTransportHoldsIt) {
  for (const bool is_synchronous : {true, false}) {
    if (!is_synchronous) UseEmulatedDevices();
    std::shared_ptr<const void> owner;
    ASSERT_EQ(Start(OverlapPlan(), std::make_unique<KeepingTransport>(Inproc(3), &owner)),
              absl::OkStatus());
    EXPECT_GT(owner.use_count(), 1);
    engine_->Submit(0, std::make_shared<StepBuffers>());
    EXPECT_TRUE(observer_.AwaitDone(is_synchronous ? 3 : 6));
    engine_.reset();
    EXPECT_EQ(owner.use_count(), 1);
    owner.reset();  // and depends on nothing that has gone
  }
}

TEST_F(LocalEngineTest, ADeviceThatThrowsWhileItLoadsIsAnError) {
  create_device_ = [](uint32_t index) -> absl::StatusOr<std::unique_ptr<Device>> {
    if (index == 1) throw std::runtime_error("out of threads");
    return CreateCpuDevice(1);
  };
  const absl::Status status = Start(OverlapPlan(), Inproc(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "device 1 threw while it loaded: out of threads");
}

TEST_F(LocalEngineTest, BuffersOfCollectivesHaveToFit) {
  testing::FaultOptions faults;
  faults.views = testing::Views::kNone;
  const planner::Plan plan = OverlapPlan();
  uint64_t needed = 0;
  for (uint32_t d = 0; d < 3; ++d) {
    needed += MemoryOf(
                  plan, d, [](uint32_t, uint32_t) { return false; }, true)
                  .total();
  }
  max_memory_bytes_ = needed - 1;
  const absl::Status status = Start(plan, testing::CreateFaultyTransport(Inproc(3), faults));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(StrCat("devices 0 to 2 need ", needed, " B")),
                    HasSubstr(": 1 B are missing")));
  max_memory_bytes_ = plan.devices[0].arena_bytes;
  EXPECT_THAT(std::string(Start(plan, testing::CreateFaultyTransport(Inproc(3), faults)).message()),
              AllOf(HasSubstr("(the most: device "), HasSubstr("(arena "),
                    HasSubstr(", collective buffers "),
                    HasSubstr(StrCat(": ", needed - max_memory_bytes_, " B are missing"))));
  max_memory_bytes_ = needed;
  gate_.Open();
  EXPECT_EQ(Start(plan, testing::CreateFaultyTransport(Inproc(3), faults)), absl::OkStatus());
  EXPECT_EQ(engine_->num_bytes(), needed);
}

TEST_F(LocalEngineTest, HostStagingHasToFit) {
  UseEmulatedDevices();
  const planner::Plan plan = OverlapPlan();
  uint64_t needed = 0;
  for (uint32_t d = 0; d < 3; ++d) needed += MemoryOf(plan, d, nullptr, false).total();
  max_memory_bytes_ = needed - 1;
  EXPECT_THAT(std::string(Start(plan, Inproc(3)).message()),
              HasSubstr("the host staging of device "));
  max_memory_bytes_ = needed;
  gate_.Open();
  EXPECT_EQ(Start(plan, Inproc(3)), absl::OkStatus());
  EXPECT_EQ(engine_->num_bytes(), needed);
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

TEST_F(LocalEngineTest, ThreadsAreNamedAfterTheirWork) {
  ASSERT_EQ(Start(OverlapPlan(), Inproc(3)), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  ASSERT_TRUE(observer_.AwaitDone(3));
  std::map<std::string, int> counts;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    ++counts[name];
  }
  EXPECT_EQ(counts["communication"], 1);
  EXPECT_GE(counts["executor"], 3);
  engine_->Stop();
}

// Nothing that is sent arrives; whoever still cancels when the transport has gone is found out.
class SilentEndpoint final : public transport::Endpoint {
 public:
  using Request = transport::Request;

  std::function<void()> on_send;
  std::string sender;    // the name of the last thread
  bool is_busy = false;  // something moves all the time

  void set_gone() { is_gone_ = true; }
  uint32_t generation() const override { return 0; }
  void Send(uint32_t, transport::Tag, const void*, size_t, uint32_t, Request* request) override {
    request->state = Request::State::kPending;
    std::array<char, 16> name = {};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    sender = name.data();
    if (on_send) on_send();
  }
  void Recv(uint32_t, transport::Tag, void*, size_t, Request* request) override {
    request->state = Request::State::kPending;
  }
  bool can_view() const override { return true; }
  void View(uint32_t, transport::Tag, size_t, Request* request) override {
    request->state = Request::State::kPending;
  }
  void Release(Request*) override {}
  void Cancel(Request* request) override {
    EXPECT_FALSE(is_gone_);
    if (request->state != Request::State::kPending) return;
    request->state = Request::State::kFailed;
    request->status = absl::CancelledError("cancelled");
  }
  bool Progress() override { return is_busy; }
  void SetWakeup(std::function<void()>) override {}

 private:
  bool is_gone_ = false;
};

class SilentTransport final : public transport::Transport {
 public:
  // The endpoints outlive it.
  explicit SilentTransport(std::vector<SilentEndpoint>* endpoints) : endpoints_(*endpoints) {}
  ~SilentTransport() override {
    for (SilentEndpoint& endpoint : endpoints_) endpoint.set_gone();
  }
  std::string name() const override { return "silent"; }
  uint32_t num_devices() const override { return static_cast<uint32_t>(endpoints_.size()); }
  absl::StatusOr<transport::Endpoint*> OpenEndpoint(uint32_t device) override {
    return &endpoints_[device];
  }
  void Wait(int fd, int timeout_ms) override {
    if (on_wait) on_wait();
    Transport::Wait(fd, timeout_ms);
  }
  transport::TransportStats stats() const override { return {}; }

  std::function<void()> on_wait;

 private:
  std::vector<SilentEndpoint>& endpoints_;
};

// With a long kernel ahead, the communication executor starts what becomes ready; an executor with
// nothing else to do starts it itself.
TEST_F(LocalEngineTest, ACommunicationDoesNotBeginOnAThreadThatIsToCompute) {
  for (const bool is_busy : {true, false}) {
    EnginePlanBuilder b;
    for (int i = 0; i < 2; ++i) b.AddDevice();
    const uint32_t made = b.AddRegister(0);
    b.BeginPhase(0, "F", PhaseKind::kForward);
    const uint32_t make = b.AddKernel(0, "made", "t.iota", {}, {made});
    b.AddChannel(0, make, b.AddSend(0, "send", made, 1));
    if (is_busy) b.AddKernel(0, "make", "t.pass", {}, {b.AddRegister(0)});
    b.BeginPhase(1, "F", PhaseKind::kForward);
    b.AddRecv(1, "recv", b.AddRegister(1), b.last_transfer());
    std::vector<SilentEndpoint> endpoints(2);
    endpoints[0].on_send = [this] { gate_.Open(); };
    ASSERT_EQ(Start(b.Build(), std::make_unique<SilentTransport>(&endpoints)), absl::OkStatus());
    gate_.Close();
    engine_->Submit(0, std::make_shared<StepBuffers>());
    EXPECT_TRUE(gate_.Pass());
    engine_.reset();
    EXPECT_EQ(endpoints[0].sender, is_busy ? "communication" : "executor");
  }
}

// Then time limits of requests would not be counted.
TEST_F(LocalEngineTest, TrafficWithoutAPauseKeepsNobodyFromWaiting) {
  std::vector<SilentEndpoint> endpoints(3);
  for (SilentEndpoint& endpoint : endpoints) endpoint.is_busy = true;
  auto transport = std::make_unique<SilentTransport>(&endpoints);
  transport->on_wait = [this] { gate_.Open(); };
  ASSERT_EQ(Start(OverlapPlan(), std::move(transport)), absl::OkStatus());
  EXPECT_TRUE(gate_.Pass());
  engine_.reset();
}

// Throws on the executor's thread.
class ThrowingObserver final : public EngineObserver {
 public:
  explicit ThrowingObserver(WaitingObserver* observer) : observer_(*observer) {}
  void OnStepDone(const DeviceStepReport& report) override { observer_.OnStepDone(report); }
  void OnError(uint32_t, int64_t, const absl::Status&) override { throw 1; }
  void OnFailure(const absl::Status& status) override { observer_.OnFailure(status); }

 private:
  WaitingObserver& observer_;
};

TEST_F(LocalEngineTest, AnExecutorThatEndsByAnExceptionLeavesNothingUnderWay) {
  EnginePlanBuilder b;
  for (int i = 0; i < 2; ++i) b.AddDevice();
  const uint32_t sum = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1},
                                           {kWidth / 2, kWidth - kWidth / 2}, true);
  for (const uint32_t d : {0u, 1u}) {
    const uint32_t in = b.AddRegister(d);
    const uint32_t out = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t made = b.AddKernel(d, "made", "t.iota", {}, {in});
    b.AddChannel(d, made, b.AddCollective(d, "sum", sum, in, out));
    if (d == 0) b.AddKernel(d, "risk", "t.fail", {in}, {b.AddRegister(d)});
  }
  b.AddChannel(0, 0, 2);  // the failure comes when the all_reduce has begun
  std::vector<SilentEndpoint> endpoints(2);
  ThrowingObserver observer(&observer_);
  ASSERT_EQ(Start(b.Build(), std::make_unique<SilentTransport>(&endpoints), &observer),
            absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  EXPECT_THAT(std::string(observer_.AwaitFailure().message()),
              HasSubstr("the executor of device 0 has ended"));
  engine_.reset();
}

TEST_F(LocalEngineTest, TheEndOfTheCommunicationExecutorEndsTheSession) {
  ASSERT_EQ(Start(OverlapPlan(), std::make_unique<ThrowingTransport>(Inproc(3))), absl::OkStatus());
  const absl::Status failure = observer_.AwaitFailure();
  EXPECT_THAT(std::string(failure.message()), HasSubstr("the communication executor has ended"));
  EXPECT_EQ(OriginOf(failure).actor, "communication executor");
  gate_.Open();
  engine_->Stop();
}

// Throws where it is told of the first failure, on the thread that tells it.
class ThrowingOnFailure final : public EngineObserver {
 public:
  explicit ThrowingOnFailure(WaitingObserver* observer) : observer_(*observer) {}
  void OnStepDone(const DeviceStepReport& report) override { observer_.OnStepDone(report); }
  void OnError(uint32_t, int64_t, const absl::Status& status) override { OnFailure(status); }
  void OnFailure(const absl::Status& status) override {
    if (!has_thrown_.exchange(true)) throw std::runtime_error("nobody listens");
    observer_.OnFailure(status);
  }

 private:
  WaitingObserver& observer_;
  std::atomic<bool> has_thrown_{false};
};

TEST_F(LocalEngineTest, TheEndOfAStageControllerEndsTheSession) {
  auto policy = std::make_unique<testing::DynamicPolicy>(
      "throwing",
      [](const planner::StageContext&, const planner::StageView&)
          -> std::optional<planner::PhaseChoice> { throw std::runtime_error("out of ideas"); });
  ASSERT_EQ(policies_.Add(std::move(policy)), absl::OkStatus());
  EnginePlanBuilder b(1, "throwing");
  b.AddDevice();
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "made", "t.iota", {}, {b.AddRegister(0)});
  ThrowingOnFailure observer(&observer_);
  ASSERT_EQ(Start(b.Build(), Inproc(1), &observer), absl::OkStatus());
  engine_->Submit(0, std::make_shared<StepBuffers>());
  const absl::Status failure = observer_.AwaitFailure();
  EXPECT_THAT(std::string(failure.message()), HasSubstr("the controller of stage 0 has ended: "));
  EXPECT_EQ(OriginOf(failure).actor, "controller of stage 0");
  engine_->Stop();
}

}  // namespace
}  // namespace penstock::actors
