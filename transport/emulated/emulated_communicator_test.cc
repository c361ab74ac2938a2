#include "transport/emulated/emulated_communicator.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "base/emulated_device.h"
#include "tests/support/collective_reference.h"
#include "transport/collective.h"

namespace penstock::transport {
namespace {

using testing::Bytes;

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
      auto communicator = create(spec.devices[rank], *member.device);
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

INSTANTIATE_TEST_SUITE_P(Threads, EmulatedCommunicatorTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Threads" : "Polls"; });

TEST_P(EmulatedCommunicatorTest, AgreesWithTheReference) {
  std::mt19937_64 random(GetParam());
  for (int i = 0; i < 100; ++i) {
    const CollectiveSpec spec = testing::RandomCollective(random);
    SCOPED_TRACE(testing::Describe(spec));
    Join(spec);
    if (HasFatalFailure()) return;
    const size_t size = ByteSize(spec.dtype);
    for (uint64_t run = 0; run < 3; ++run) {
      std::vector<Bytes> inputs;
      for (size_t rank = 0; rank < members_.size(); ++rank) {
        const int64_t count = InputCount(spec, static_cast<int>(rank));
        inputs.push_back(testing::RandomElements(spec.dtype, count, 100 * run + rank));
        members_[rank].stream->Copy(members_[rank].input->data(), inputs[rank].data(),
                                    inputs[rank].size(), CopyKind::kHostToDevice);
      }
      std::vector<size_t> order(members_.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Bytes> outputs(members_.size());
      for (const size_t rank : order) {
        Launch(rank);
        outputs[rank].resize(OutputCount(spec, static_cast<int>(rank)) * size);
        members_[rank].stream->Copy(outputs[rank].data(), members_[rank].output->data(),
                                    outputs[rank].size(), CopyKind::kDeviceToHost);
        members_[rank].stream->Record(members_[rank].event.get());
      }
      AwaitAll();
      if (HasFatalFailure()) return;
      EXPECT_EQ(outputs, testing::ReferenceCollective(spec, inputs));
    }
    for (Member& member : members_) member.stream = nullptr;
    members_.clear();
  }
}

CollectiveSpec AllReduce(uint32_t num_devices) {
  CollectiveSpec spec;
  for (uint32_t i = 0; i < num_devices; ++i) {
    spec.devices.push_back(i);
    spec.counts.push_back(4);
  }
  return spec;
}

// Members that are ahead by many runs wait for the slowest.
TEST_P(EmulatedCommunicatorTest, RunsDoNotMix) {
  constexpr int kRuns = 50;
  Join(AllReduce(3));
  std::vector<std::vector<float>> results(3 * kRuns, std::vector<float>(12));
  std::vector<std::vector<float>> inputs(kRuns);
  for (int run = 0; run < kRuns; ++run) inputs[run].assign(12, static_cast<float>(run));
  for (size_t rank = 0; rank < 3; ++rank) {
    Member& member = members_[rank];
    for (int run = 0; run < kRuns; ++run) {
      member.stream->Copy(member.input->data(), inputs[run].data(), 12 * sizeof(float),
                          CopyKind::kHostToDevice);
      Launch(rank);
      member.stream->Copy(results[rank * kRuns + run].data(), member.output->data(),
                          12 * sizeof(float), CopyKind::kDeviceToHost);
    }
    member.stream->Record(member.event.get());
  }
  AwaitAll();
  for (int run = 0; run < kRuns; ++run) {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(results[rank * kRuns + run], std::vector<float>(12, 3.0f * run)) << run;
    }
  }
}

TEST_P(EmulatedCommunicatorTest, APoisonedMemberIsToldToAll) {
  Join(AllReduce(3));
  for (size_t rank = 0; rank < 3; ++rank) Launch(rank, /*is_poisoned=*/rank == 1);
  AwaitAll();
  for (const size_t rank : {0, 2}) {
    const StreamError* error = members_[rank].event->error();
    ASSERT_NE(error, nullptr) << rank;
    EXPECT_EQ(error->status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(error->launch, rank);
    EXPECT_EQ(members_[rank].stream->Reset(), absl::OkStatus());
  }
  for (size_t rank = 0; rank < 3; ++rank) Launch(rank);
  AwaitAll();
  for (const Member& member : members_) EXPECT_EQ(member.event->error(), nullptr);
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

TEST_P(EmulatedCommunicatorTest, OneThatTellsNoFailuresLetsOthersGoOn) {
  Join(AllReduce(2), /*tells_failures=*/false);
  Launch(0, /*is_poisoned=*/true);
  Launch(1);
  AwaitAll();
  for (const Member& member : members_) EXPECT_EQ(member.event->error(), nullptr);
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
  EXPECT_EQ(CreateEmulatedCommunicators()(0, *device).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace penstock::transport
