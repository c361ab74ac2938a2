#include "transport/emulated/emulated_communicator.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "base/emulated_device.h"
#include "tests/support/collective_reference.h"
#include "tests/support/stream_conformance.h"
#include "transport/collective.h"

namespace penstock::transport {
namespace {

using testing::StreamConformance;

constexpr int64_t kTimeoutNs = 60'000'000'000;

// A member of a collective, with its device and its memory.
struct Member {
  std::unique_ptr<EmulatedDevice> device;
  std::unique_ptr<Memory> input;
  std::unique_ptr<Memory> output;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<StreamCollective> collective;
  std::unique_ptr<Event> event;
  std::unique_ptr<Stream> stream;
};

class EmulatedCommunicatorTest : public ::testing::TestWithParam<bool> {
 protected:
  void Join(const CollectiveSpec& spec, bool tells_failures = true) {
    ASSERT_EQ(CheckCollective(spec, 16), absl::OkStatus());
    spec_ = spec;
    const CommunicatorFactory create = CreateEmulatedCommunicators();
    for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
      Member& member = members_.emplace_back();
      member.device = EmulatedDevice::Create({.has_thread = GetParam(), .seed = rank});
      member.input = Allocate(member, InputCount(spec, static_cast<int>(rank)));
      member.output = Allocate(member, OutputCount(spec, static_cast<int>(rank)));
      member.event = member.device->CreateEvent();
      member.stream = member.device->CreateStream();
      auto communicator = create(spec.devices[rank], *member.device, {});
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      member.communicator = *std::move(communicator);
      auto collective =
          member.communicator->Create(spec, static_cast<int>(rank), *member.stream, tells_failures);
      ASSERT_TRUE(collective.ok()) << collective.status();
      member.collective = *std::move(collective);
    }
  }

  ~EmulatedCommunicatorTest() override {
    for (Member& member : members_) member.stream = nullptr;
  }

  std::unique_ptr<Memory> Allocate(Member& member, int64_t count) const {
    auto memory = member.device->Allocate(count * ByteSize(spec_.dtype) + 1, MemoryKind::kDevice);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }

  void Launch(size_t rank, bool is_poisoned = false) {
    Member& member = members_[rank];
    const testing::TensorPlaces places(spec_, static_cast<int>(rank), member.input->data(),
                                       member.output->data());
    EXPECT_EQ(member.collective->Launch({places.inputs.data(), places.outputs.data(), is_poisoned,
                                         /*launch=*/rank}),
              absl::OkStatus());
    member.stream->Record(member.event.get());
  }

  // Lets all devices work until the last run of each is over.
  void AwaitAll() {
    const SteadyClock clock;
    const int64_t deadline = clock.NowNs() + kTimeoutNs;
    while (!std::all_of(members_.begin(), members_.end(),
                        [](const Member& member) { return member.event->IsDone(); })) {
      for (Member& member : members_) member.stream->Poll();
      ASSERT_LT(clock.NowNs(), deadline) << "the collective does not end";
    }
  }

  CollectiveSpec spec_;
  std::vector<Member> members_;
};

testing::StreamFabricParam OneProcess(bool has_thread) {
  return {.name = has_thread ? "Threads" : "Polls", .make = [has_thread](uint32_t, const auto&) {
            return testing::MakeStreamFabric(
                [has_thread](uint32_t index) {
                  return EmulatedDevice::Create({.has_thread = has_thread, .seed = index});
                },
                CreateEmulatedCommunicators());
          }};
}

// Both have one source, as nodes that tests run in one process.
testing::StreamFabricParam TwoProcesses() {
  return {.name = "TwoProcesses", .make = [](uint32_t, const auto& groups) {
            const std::shared_ptr<CommunicatorSource> source =
                CreateEmulatedSource([](uint32_t index) { return std::to_string(index); });
            return testing::MakeStreamFabric(
                [](uint32_t index) { return EmulatedDevice::Create({.seed = index}); },
                {source, source}, groups);
          }};
}

INSTANTIATE_TEST_SUITE_P(Emulated, StreamConformance,
                         ::testing::Values(OneProcess(true), OneProcess(false), TwoProcesses()),
                         testing::StreamFabricParamName);

INSTANTIATE_TEST_SUITE_P(Threads, EmulatedCommunicatorTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Threads" : "Polls"; });

CollectiveSpec AllReduce(uint32_t num_devices) {
  CollectiveSpec spec;
  for (uint32_t i = 0; i < num_devices; ++i) {
    spec.devices.push_back(i);
    spec.counts.push_back(4);
  }
  return spec;
}

// An error of its own stream is told, too, and stays what it was.
TEST_P(EmulatedCommunicatorTest, AnErrorOfAStreamIsToldToAll) {
  Join(AllReduce(2));
  int elsewhere = 0;
  members_[0].stream->Copy(&elsewhere, &elsewhere, 1, CopyKind::kHostToDevice);
  for (size_t rank = 0; rank < 2; ++rank) Launch(rank);
  AwaitAll();
  ASSERT_NE(members_[0].event->error(), nullptr);
  EXPECT_EQ(members_[0].event->error()->status.code(), absl::StatusCode::kInternal);
  ASSERT_NE(members_[1].event->error(), nullptr);
  EXPECT_EQ(members_[1].event->error()->status.code(), absl::StatusCode::kAborted);
}

// As NCCL demands it. Nothing hangs all the same.
TEST_P(EmulatedCommunicatorTest, RefusesLaunchesInAnotherOrder) {
  CollectiveSpec first = AllReduce(2);
  first.channel = 7;
  Join(first);
  CollectiveSpec second = first;
  second.channel = 8;
  std::vector<std::unique_ptr<StreamCollective>> others;
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int rank = 0; rank < 2; ++rank) {
    Member& member = members_[rank];
    events.push_back(member.device->CreateEvent());
    streams.push_back(member.device->CreateStream());
    auto other =
        member.communicator->Create(second, rank, *streams.back(), /*tells_failures=*/true);
    ASSERT_TRUE(other.ok()) << other.status();
    others.push_back(*std::move(other));
  }
  const auto launch_other = [&](int rank) {
    const testing::TensorPlaces places(second, rank, members_[rank].input->data(),
                                       members_[rank].output->data());
    const absl::Status status = others[rank]->Launch(
        {places.inputs.data(), places.outputs.data(), /*is_poisoned=*/false, kNoLaunch});
    streams[rank]->Record(events[rank].get());
    return status;
  };
  Launch(0);
  EXPECT_EQ(launch_other(0), absl::OkStatus());
  EXPECT_EQ(launch_other(1),
            absl::FailedPreconditionError(
                "rank 1 launches the collective on channel 8 as number 0 of its communicator, and "
                "rank 0 has launched the one on channel 7: all members must launch in the same "
                "order"));
  Launch(1);
  AwaitAll();
  const SteadyClock clock;
  const int64_t deadline = clock.NowNs() + kTimeoutNs;
  while (!events[0]->IsDone() || !events[1]->IsDone()) {
    for (const std::unique_ptr<Stream>& stream : streams) stream->Poll();
    for (const Member& member : members_) member.stream->Poll();
    ASSERT_LT(clock.NowNs(), deadline) << "the collective does not end";
  }
}

TEST(EmulatedCommunicatorFactoryTest, RefusesOtherDevices) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  EXPECT_EQ(CreateEmulatedCommunicators()(0, *device, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace penstock::transport
