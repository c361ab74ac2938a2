#include "actors/engine/device_communication.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "base/collective.h"
#include "transport/collective.h"
#include "transport/transport.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;

constexpr std::chrono::seconds kPatience{60};
constexpr uint32_t kSend = 0;
constexpr uint32_t kRecv = 1;
constexpr uint32_t kReduce = 2;
constexpr int64_t kCount = 1000;

// Two devices, each with a send to the other, a receive from it and an all_reduce.
class DeviceCommunicationTest : public ::testing::Test {
 protected:
  struct Side {
    Waker device_waker;
    Waker communication_waker;
    std::unique_ptr<DeviceCommunication> communication;
    std::vector<double> sent = std::vector<double>(kCount);
    std::vector<double> received = std::vector<double>(kCount);
    std::vector<double> sum = std::vector<double>(kCount);
    std::array<void*, 3> inputs = {};  // of each operation
    std::array<void*, 3> outputs = {};
  };

  void Make(bool has_server) {
    transport_ = transport::CreateInprocTransport({.num_devices = 2, .num_channels = 3});
    for (uint32_t device = 0; device < 2; ++device) {
      Side& side = sides_[device];
      transport::Endpoint* endpoint = *transport_->OpenEndpoint(device);
      side.communication = std::make_unique<DeviceCommunication>(
          endpoint, &side.device_waker, has_server ? &side.communication_waker : nullptr);
      endpoint->SetWakeup([&side] { side.communication->OnArrival(); });
      std::vector<Comm> comms(3);
      for (uint32_t i : {kSend, kRecv}) {
        comms[i].kind = i == kSend ? ActorKind::kSend : ActorKind::kRecv;
        CommTensor& tensor = comms[i].tensors[0];
        (i == kSend ? tensor.input_bytes : tensor.output_bytes) = kCount * sizeof(double);
        comms[i].peer = 1 - device;
        comms[i].channel = (i + device) % 2;
      }
      CollectiveSpec spec;
      spec.kind = CollectiveKind::kAllReduce;
      spec.dtype = DType::kF64;
      spec.channel = 2;
      spec.devices = {0, 1};
      spec.counts = {kCount / 2, kCount - kCount / 2};
      spec.chunk_bytes = 1024;
      comms[kReduce].collective = *transport::CreateCollective(spec, device, *endpoint);
      comms[kReduce].channel = 2;
      side.communication->Load(std::move(comms), 0, nullptr);
    }
  }

  void Start(uint32_t device, uint32_t comm, uint64_t sequence) {
    Side& side = sides_[device];
    CommStart start;
    start.comm = comm;
    start.sequence = sequence;
    side.inputs[comm] = side.sent.data();
    side.outputs[comm] = comm == kRecv ? side.received.data() : side.sum.data();
    start.inputs = &side.inputs[comm];
    start.outputs = &side.outputs[comm];
    side.communication->Start(start);
    side.communication->Flush();
  }

  // What a communication executor does, until `is_stopping`.
  void Serve(Side& side, const std::atomic<bool>& is_stopping) {
    while (!is_stopping.load()) {
      if (side.communication->Serve()) continue;
      side.communication_waker.PrepareSleep();
      side.communication->PrepareServerSleep();
      if (side.communication->Serve() || is_stopping.load()) {
        side.communication_waker.CancelSleep();
      } else {
        side.communication_waker.Sleep(kPatience / std::chrono::milliseconds(1));
      }
    }
  }

  std::array<Side, 2> sides_;
  std::unique_ptr<transport::Transport> transport_;
};

// Fails at once, while peers still read what it has sent.
class UnsettledCollective final : public transport::Collective {
 public:
  explicit UnsettledCollective(const bool* is_settled) : is_settled_(*is_settled) {}
  void StartTensors(const void* const*, void* const*, uint64_t, uint32_t) override {}
  bool Poll() override { return true; }
  const absl::Status& status() const override { return status_; }
  uint32_t flags() const override { return 0; }
  void Cancel() override {}
  bool Settle() override { return is_settled_; }

 private:
  const bool& is_settled_;
  const absl::Status status_ = absl::UnavailableError("a peer is gone");
};

TEST_F(DeviceCommunicationTest, AFailedCollectiveCompletesWhenItsMemoryIsFree) {
  Make(false);
  bool is_settled = false;
  DeviceCommunication& communication = *sides_[0].communication;
  std::vector<Comm> comms(1);
  comms[0].collective = std::make_unique<UnsettledCollective>(&is_settled);
  communication.Load(std::move(comms), 0, nullptr);
  Start(0, 0, 0);
  uint32_t comm = 9;
  for (int i = 0; i < 3; ++i) {
    communication.Advance();
    EXPECT_FALSE(communication.NextCompletion(&comm));
  }
  is_settled = true;
  communication.Advance();
  EXPECT_TRUE(communication.NextCompletion(&comm));
  EXPECT_EQ(comm, 0u);
}

TEST_F(DeviceCommunicationTest, ADeviceDrivesItsOwn) {
  Make(false);
  std::fill(sides_[0].sent.begin(), sides_[0].sent.end(), 3.0);
  Start(0, kSend, 0);
  Start(1, kRecv, 0);
  EXPECT_TRUE(sides_[0].communication->is_owner());
  EXPECT_EQ(sides_[0].communication->num_active(), 1u);
  std::array<bool, 2> are_done = {};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!are_done[0] || !are_done[1]) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    for (uint32_t device : {0, 1}) {
      DeviceCommunication& communication = *sides_[device].communication;
      communication.Advance();
      uint32_t comm = 9;
      if (!communication.NextCompletion(&comm)) continue;
      EXPECT_EQ(comm, device == 0 ? kSend : kRecv);
      are_done[device] = true;
    }
  }
  EXPECT_EQ(sides_[1].received, sides_[0].sent);
  EXPECT_EQ(sides_[0].communication->num_active(), 0u);
}

// The devices compute, which is to say that they do nothing here but wait for a completion.
TEST_F(DeviceCommunicationTest, TheCommunicationExecutorWorksWhileDevicesCompute) {
  Make(true);
  std::atomic<bool> is_stopping = false;
  std::array<std::thread, 2> servers;
  for (uint32_t i : {0, 1}) {
    servers[i] = std::thread([this, i, &is_stopping] { Serve(sides_[i], is_stopping); });
  }
  for (uint64_t run = 0; run < 20; ++run) {
    for (uint32_t device : {0, 1}) {
      std::fill(sides_[device].sent.begin(), sides_[device].sent.end(), 1.0 + device);
      Start(device, kReduce, run);
      if (sides_[device].communication->is_owner()) sides_[device].communication->Disown();
    }
    for (Side& side : sides_) {
      uint32_t comm = 9;
      const auto deadline = std::chrono::steady_clock::now() + kPatience;
      while (!side.communication->NextCompletion(&comm)) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "run " << run;
        std::this_thread::yield();
      }
      EXPECT_EQ(comm, kReduce);
      EXPECT_EQ(side.communication->comm(comm).collective->status(), absl::OkStatus());
      EXPECT_EQ(side.sum, std::vector<double>(kCount, 3.0));
    }
  }
  is_stopping = true;
  for (Side& side : sides_) side.communication_waker.Notify();
  for (std::thread& server : servers) server.join();
}

// Devices that poll, sleep or compute by turns, and never wait in vain.
TEST_F(DeviceCommunicationTest, NoWakeUpIsLostWhoeverOwnsTheEndpoint) {
  Make(true);
  constexpr uint64_t kRounds = 2000;
  std::atomic<bool> is_stopping = false;
  std::atomic<int> num_late = 0;
  const auto device_loop = [&](uint32_t device) {
    Side& side = sides_[device];
    DeviceCommunication& communication = *side.communication;
    std::mt19937 random(device);
    for (uint64_t round = 0; round < kRounds && num_late == 0; ++round) {
      std::fill(side.sent.begin(), side.sent.end(), static_cast<double>(2 * round + device));
      for (uint32_t comm : {kSend, kRecv, kReduce}) Start(device, comm, round);
      while (communication.num_active() > 0 && num_late == 0) {
        uint32_t comm = 0;
        if (communication.NextCompletion(&comm)) continue;
        switch (random() % 3) {
          case 0:  // computes
            if (communication.is_owner()) communication.Disown();
            break;
          case 1:
            if (communication.TryOwn()) communication.Advance();
            break;
          case 2: {
            side.device_waker.PrepareSleep();
            communication.PrepareSleep();
            const bool has_moved = communication.is_owner() && communication.Advance();
            if (has_moved || communication.NextCompletion(&comm)) {
              side.device_waker.CancelSleep();
              communication.EndSleep();
              break;
            }
            const auto begin = std::chrono::steady_clock::now();
            side.device_waker.Sleep(kPatience / std::chrono::milliseconds(1));
            communication.EndSleep();
            if (std::chrono::steady_clock::now() - begin > kPatience / 2) ++num_late;
            break;
          }
        }
      }
      EXPECT_EQ(side.received, std::vector<double>(kCount, 2.0 * round + (1 - device)));
      EXPECT_EQ(side.sum, std::vector<double>(kCount, 4.0 * round + 1));
    }
    if (communication.is_owner()) communication.Disown();
  };
  std::vector<std::thread> threads;
  for (uint32_t i : {0, 1}) {
    threads.emplace_back([this, i, &is_stopping] { Serve(sides_[i], is_stopping); });
  }
  std::thread other(device_loop, 1);
  device_loop(0);
  other.join();
  EXPECT_EQ(num_late, 0) << "a thread was not woken";
  is_stopping = true;
  for (Side& side : sides_) side.communication_waker.Notify();
  for (std::thread& thread : threads) thread.join();
}

// It would sleep on an endpoint that is not prepared.
TEST_F(DeviceCommunicationTest, ADeviceAboutToSleepDoesNotBecomeTheOwner) {
  Make(true);
  DeviceCommunication& communication = *sides_[0].communication;
  Start(0, kRecv, 0);
  communication.Disown();
  EXPECT_EQ(communication.PrepareSleep(), -1);
  EXPECT_FALSE(communication.TryOwn());
  communication.EndSleep();
  EXPECT_TRUE(communication.TryOwn());
  communication.PrepareSleep();
  EXPECT_TRUE(communication.is_owner()) << "it waits for its receive";
  communication.EndSleep();
  communication.Cancel();
}

TEST_F(DeviceCommunicationTest, CancelEndsWhatIsUnderWay) {
  Make(true);
  Start(0, kRecv, 0);
  sides_[0].communication->Disown();
  sides_[0].communication->Cancel();
  EXPECT_EQ(sides_[0].communication->comm(kRecv).request.state, transport::Request::State::kFailed);
  EXPECT_EQ(sides_[0].communication->num_active(), 0u);
  EXPECT_FALSE(sides_[0].communication->Serve()) << "the device keeps the endpoint";
}

}  // namespace
}  // namespace penstock::actors
