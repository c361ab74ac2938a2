#include "transport/emulated/emulated_communicator.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "base/emulated_device.h"
#include "tests/support/collective_reference.h"
#include "tests/support/stream_conformance.h"

namespace penstock::transport {
namespace {

using testing::AllReduceOf;
using testing::StreamConformance;
using testing::StreamMembers;

constexpr int64_t kTimeoutNs = 60'000'000'000;

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

class EmulatedCommunicatorTest : public ::testing::TestWithParam<bool> {
 protected:
  // The members of `spec`, on devices with threads or without.
  static std::unique_ptr<StreamMembers> Join(const CollectiveSpec& spec) {
    const auto fabric =
        OneProcess(GetParam()).make(static_cast<uint32_t>(spec.devices.size()), {GroupOf(spec)});
    return std::make_unique<StreamMembers>(spec, **fabric);
  }
};

INSTANTIATE_TEST_SUITE_P(Threads, EmulatedCommunicatorTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Threads" : "Polls"; });

// An error of its own stream is told, too, and stays what it was.
TEST_P(EmulatedCommunicatorTest, AnErrorOfAStreamIsToldToAll) {
  const std::unique_ptr<StreamMembers> members = Join(AllReduceOf(2));
  int elsewhere = 0;
  (*members)[0].stream->Copy(&elsewhere, &elsewhere, 1, CopyKind::kHostToDevice);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(members->Launch(rank), absl::OkStatus());
  members->AwaitAll();
  const StreamError* const own = (*members)[0].event->error();
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(own->status.code(), absl::StatusCode::kInternal);
  const StreamError* const told = (*members)[1].event->error();
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(told->status.code(), absl::StatusCode::kAborted);
}

// As NCCL demands it. Nothing hangs all the same.
TEST_P(EmulatedCommunicatorTest, RefusesLaunchesInAnotherOrder) {
  CollectiveSpec first = AllReduceOf(2);
  first.channel = 7;
  const std::unique_ptr<StreamMembers> members = Join(first);
  CollectiveSpec second = first;
  second.channel = 8;
  std::vector<std::unique_ptr<StreamCollective>> others;
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int rank = 0; rank < 2; ++rank) {
    StreamMembers::Member& member = (*members)[static_cast<size_t>(rank)];
    events.push_back(member.device->CreateEvent());
    streams.push_back(member.device->CreateStream());
    auto other =
        member.communicator->Create(second, rank, *streams.back(), /*tells_failures=*/true);
    ASSERT_TRUE(other.ok()) << other.status();
    others.push_back(*std::move(other));
  }
  const auto launch_other = [&](size_t rank) {
    const testing::TensorPlaces places(second, static_cast<int>(rank),
                                       (*members)[rank].input->data(),
                                       (*members)[rank].output->data());
    const absl::Status status = others[rank]->Launch(
        {places.inputs.data(), places.outputs.data(), /*is_poisoned=*/false, kNoLaunch});
    streams[rank]->Record(events[rank].get());
    return status;
  };
  EXPECT_EQ(members->Launch(0), absl::OkStatus());
  EXPECT_EQ(launch_other(0), absl::OkStatus());
  EXPECT_EQ(launch_other(1),
            absl::FailedPreconditionError(
                "rank 1 launches the collective on channel 8 as number 0 of its communicator, and "
                "rank 0 has launched the one on channel 7: all members must launch in the same "
                "order"));
  EXPECT_EQ(members->Launch(1), absl::OkStatus());
  members->AwaitAll();
  const SteadyClock clock;
  const int64_t deadline = clock.NowNs() + kTimeoutNs;
  while (!events[0]->IsDone() || !events[1]->IsDone()) {
    for (const std::unique_ptr<Stream>& stream : streams) stream->Poll();
    for (size_t rank = 0; rank < 2; ++rank) (*members)[rank].stream->Poll();
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
