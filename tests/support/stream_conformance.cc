#include "tests/support/stream_conformance.h"

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "base/device.h"
#include "base/half.h"
#include "base/strings.h"
#include "transport/collective.h"

namespace penstock::testing {
namespace {

using transport::CheckCollective;
using transport::Communicator;
using transport::CommunicatorFactory;
using transport::CommunicatorSource;
using transport::DeviceGroup;
using transport::GroupIds;
using transport::GroupOf;
using transport::MessageOf;
using transport::StreamCollective;

constexpr int64_t kTimeoutNs = 60'000'000'000;

class OneProcess final : public StreamFabric {
 public:
  OneProcess(std::function<std::unique_ptr<Device>(uint32_t index)> create_device,
             CommunicatorFactory factory)
      : create_device_(std::move(create_device)), factory_(std::move(factory)) {}

  std::unique_ptr<Device> CreateDevice(uint32_t index) override { return create_device_(index); }
  CommunicatorFactory FactoryFor(uint32_t) override { return factory_; }

 private:
  const std::function<std::unique_ptr<Device>(uint32_t index)> create_device_;
  const CommunicatorFactory factory_;
};

class TwoProcesses final : public StreamFabric {
 public:
  TwoProcesses(std::function<std::unique_ptr<Device>(uint32_t index)> create_device,
               const std::vector<std::shared_ptr<CommunicatorSource>>& sources,
               const std::vector<DeviceGroup>& groups)
      : create_device_(std::move(create_device)) {
    std::vector<GroupIds> ids(sources.size());
    for (const DeviceGroup& group : groups) {
      const auto id = sources[group.devices.front() % sources.size()]->CreateGroupId();
      EXPECT_TRUE(id.ok()) << id.status();
      for (const uint32_t device : group.devices) ids[device % sources.size()][group] = *id;
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      factories_.push_back(sources[i]->CreateFactory(std::move(ids[i])));
    }
  }

  std::unique_ptr<Device> CreateDevice(uint32_t index) override { return create_device_(index); }
  CommunicatorFactory FactoryFor(uint32_t index) override {
    return factories_[index % factories_.size()];
  }

 private:
  const std::function<std::unique_ptr<Device>(uint32_t index)> create_device_;
  std::vector<CommunicatorFactory> factories_;
};

void Await(std::vector<std::pair<Stream*, Event*>> events) {
  const SteadyClock clock;
  const int64_t deadline = clock.NowNs() + kTimeoutNs;
  while (!std::all_of(events.begin(), events.end(),
                      [](const auto& event) { return event.second->IsDone(); })) {
    for (const auto& event : events) event.first->Poll();
    ASSERT_LT(clock.NowNs(), deadline) << "the collective does not end";
    std::this_thread::yield();
  }
}

}  // namespace

std::unique_ptr<StreamFabric> MakeStreamFabric(
    std::function<std::unique_ptr<Device>(uint32_t index)> create_device,
    CommunicatorFactory factory) {
  return std::make_unique<OneProcess>(std::move(create_device), std::move(factory));
}

std::unique_ptr<StreamFabric> MakeStreamFabric(
    std::function<std::unique_ptr<Device>(uint32_t index)> create_device,
    const std::vector<std::shared_ptr<CommunicatorSource>>& sources,
    const std::vector<DeviceGroup>& groups) {
  return std::make_unique<TwoProcesses>(std::move(create_device), sources, groups);
}

std::string StreamFabricParamName(const ::testing::TestParamInfo<StreamFabricParam>& info) {
  return info.param.name;
}

StreamMembers::StreamMembers(const CollectiveSpec& spec, StreamFabric& fabric, size_t num_joining,
                             bool tells_failures)
    : spec_(spec) {
  EXPECT_EQ(CheckCollective(spec, 16), absl::OkStatus());
  const DeviceGroup groups[] = {GroupOf(spec)};
  for (size_t rank = 0; rank < std::min(num_joining, spec.devices.size()); ++rank) {
    const uint32_t index = spec.devices[rank];
    Member& member = members_.emplace_back();
    member.device = fabric.CreateDevice(index);
    const auto allocate = [&](int64_t count) {
      return *member.device->Allocate(count * ByteSize(spec.dtype) + 1, MemoryKind::kDevice);
    };
    member.input = allocate(InputCount(spec, static_cast<int>(rank)));
    member.output = allocate(OutputCount(spec, static_cast<int>(rank)));
    member.event = member.device->CreateEvent();
    member.stream = member.device->CreateStream();
    auto communicator = fabric.FactoryFor(index)(index, *member.device, groups);
    EXPECT_TRUE(communicator.ok()) << communicator.status();
    member.communicator = *std::move(communicator);
    auto collective =
        member.communicator->Create(spec, static_cast<int>(rank), *member.stream, tells_failures);
    EXPECT_TRUE(collective.ok()) << collective.status();
    member.collective = *std::move(collective);
  }
}

absl::Status StreamMembers::Launch(size_t rank, bool is_poisoned) {
  Member& member = members_[rank];
  const TensorPlaces places(spec_, static_cast<int>(rank), member.input->data(),
                            member.output->data());
  const absl::Status status = member.collective->Launch(
      {places.inputs.data(), places.outputs.data(), is_poisoned, /*launch=*/rank});
  member.stream->Record(member.event.get());
  return status;
}

void StreamMembers::LaunchAll(size_t poisoned) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size(); ++rank) {
    threads.emplace_back(
        [this, rank, poisoned] { EXPECT_EQ(Launch(rank, rank == poisoned), absl::OkStatus()); });
  }
  for (std::thread& thread : threads) thread.join();
}

void StreamMembers::AwaitAll() {
  std::vector<std::pair<Stream*, Event*>> events;
  for (Member& member : members_) events.emplace_back(member.stream.get(), member.event.get());
  Await(std::move(events));
}

std::vector<Bytes> StreamMembers::RunOnce(const std::vector<Bytes>& inputs) {
  for (size_t rank = 0; rank < size(); ++rank) {
    members_[rank].stream->Copy(members_[rank].input->data(), inputs[rank].data(),
                                inputs[rank].size(), CopyKind::kHostToDevice);
  }
  LaunchAll();
  std::vector<Bytes> outputs(size());
  for (size_t rank = 0; rank < size(); ++rank) {
    outputs[rank].resize(OutputCount(spec_, static_cast<int>(rank)) * ByteSize(spec_.dtype));
    members_[rank].stream->Copy(outputs[rank].data(), members_[rank].output->data(),
                                outputs[rank].size(), CopyKind::kDeviceToHost);
    members_[rank].stream->Record(members_[rank].event.get());
  }
  AwaitAll();
  return outputs;
}

CollectiveSpec AllReduceOf(uint32_t num_devices) {
  CollectiveSpec spec;
  for (uint32_t i = 0; i < num_devices; ++i) {
    spec.devices.push_back(i);
    spec.counts.push_back(4);
  }
  return spec;
}

std::vector<Bytes> RandomInputsOf(const CollectiveSpec& spec, uint64_t seed) {
  std::vector<Bytes> inputs;
  for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
    inputs.push_back(
        RandomElements(spec.dtype, InputCount(spec, static_cast<int>(rank)), seed + rank));
  }
  return inputs;
}

std::unique_ptr<StreamFabric> StreamConformance::Make(uint32_t num_devices,
                                                      const std::vector<DeviceGroup>& groups) {
  absl::StatusOr<std::unique_ptr<StreamFabric>> fabric = GetParam().make(num_devices, groups);
  if (fabric.ok()) return *std::move(fabric);
  [&] { GTEST_SKIP() << fabric.status().message(); }();
  return nullptr;
}

// Every kind of collective, of one tensor and of several, with even and uneven pieces.
TEST_P(StreamConformance, AgreesWithTheReference) {
  std::mt19937_64 random(1);
  int num_checked = 0;
  for (int i = 0; i < GetParam().num_collectives; ++i) {
    CollectiveSpec spec = RandomCollective(random);
    if (GetParam().association != StreamFabricParam::kOfSpec) {
      spec.algorithm = CollectiveAlgorithm::kDirect;
      spec.hosts.clear();
      if (IsHalf(spec.dtype)) spec.dtype = DType::kF32;  // rounded at each hop
    }
    if (GetParam().association == StreamFabricParam::kUnknown) spec.dtype = DType::kI32;
    const uint32_t num_devices = *std::max_element(spec.devices.begin(), spec.devices.end()) + 1;
    auto fabric = GetParam().make(num_devices, {GroupOf(spec)});
    if (!fabric.ok()) continue;  // some want fewer devices
    SCOPED_TRACE(Describe(spec));
    StreamMembers members(spec, **fabric);
    for (uint64_t run = 0; run < 3; ++run) {
      const std::vector<Bytes> inputs = RandomInputsOf(spec, 100 * run);
      EXPECT_EQ(members.RunOnce(inputs), ReferenceCollective(spec, inputs));
      if (HasFailure()) return;
    }
    ++num_checked;
  }
  if (num_checked == 0) Make(2, {{0, 1}});  // skips, and says why
}

// What a job on one device can show.
TEST_P(StreamConformance, OneDeviceIsAGroup) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
        CollectiveKind::kBroadcast, CollectiveKind::kAllToAll}) {
    CollectiveSpec spec = AllReduceOf(1);
    spec.kind = kind;
    spec.counts = {1 << 16};
    SCOPED_TRACE(Describe(spec));
    const std::unique_ptr<StreamFabric> fabric = Make(1, {GroupOf(spec)});
    if (fabric == nullptr) return;
    StreamMembers members(spec, *fabric);
    for (uint64_t run = 0; run < 3; ++run) {
      const std::vector<Bytes> inputs = RandomInputsOf(spec, run);
      EXPECT_EQ(members.RunOnce(inputs), ReferenceCollective(spec, inputs));
    }
  }
}

// In every type, whatever the association: terms are such that it does not matter.
TEST_P(StreamConformance, ReducesFloatsExactly) {
  constexpr uint32_t kMostDevices = 4;
  uint32_t n = kMostDevices;  // or as many as there are, but two
  while (n > 2 && !GetParam().make(n, {}).ok()) --n;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin}) {
        CollectiveSpec spec = AllReduceOf(n);
        spec.kind = kind;
        spec.dtype = dtype;
        spec.reduce = op;
        spec.counts[0] = 1000;
        SCOPED_TRACE(Describe(spec));
        const std::unique_ptr<StreamFabric> fabric = Make(n, {DeviceGroup(spec.devices)});
        if (fabric == nullptr) return;
        StreamMembers members(spec, *fabric);
        std::vector<Bytes> inputs;
        for (uint64_t rank = 0; rank < n; ++rank) {
          inputs.push_back(SmallIntegers(dtype, InputCount(spec, static_cast<int>(rank)), rank));
        }
        EXPECT_EQ(members.RunOnce(inputs), ReferenceCollective(spec, inputs));
        if (HasFailure()) return;
      }
    }
  }
}

// Members that are ahead by many runs wait for the slowest.
TEST_P(StreamConformance, RunsDoNotMix) {
  constexpr int kRuns = 50;
  constexpr size_t kRanks = 3;
  const CollectiveSpec spec = AllReduceOf(kRanks);
  const std::unique_ptr<StreamFabric> fabric = Make(kRanks, {GroupOf(spec)});
  if (fabric == nullptr) return;
  StreamMembers members(spec, *fabric);
  std::vector<std::vector<float>> results(kRanks * kRuns, std::vector<float>(12));
  std::vector<std::vector<float>> inputs(kRuns);
  for (int run = 0; run < kRuns; ++run) inputs[run].assign(12, static_cast<float>(run));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      StreamMembers::Member& member = members[rank];
      for (int run = 0; run < kRuns; ++run) {
        member.stream->Copy(member.input->data(), inputs[run].data(), 12 * sizeof(float),
                            CopyKind::kHostToDevice);
        EXPECT_EQ(members.Launch(rank), absl::OkStatus());
        member.stream->Copy(results[rank * kRuns + run].data(), member.output->data(),
                            12 * sizeof(float), CopyKind::kDeviceToHost);
      }
      member.stream->Record(member.event.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  members.AwaitAll();
  for (int run = 0; run < kRuns; ++run) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(results[rank * kRuns + run], std::vector<float>(12, 3.0f * run)) << run;
    }
  }
}

// Three groups that overlap, each collective on a stream of its own. Devices launch theirs in one
// order over all groups, and step after step.
TEST_P(StreamConformance, GroupsOverlap) {
  const std::vector<DeviceGroup> groups = {{0, 1}, {0, 1, 2}, {1, 2}};
  const std::unique_ptr<StreamFabric> fabric = Make(3, groups);
  if (fabric == nullptr) return;
  struct Part {
    size_t group = 0;
    std::unique_ptr<Memory> value;
    std::vector<float> host;
    std::unique_ptr<StreamCollective> collective;
    std::unique_ptr<Event> event;
    std::unique_ptr<Stream> stream;
  };
  struct Member {
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> communicator;
    std::vector<Part> parts;
  };
  std::vector<Member> members(3);
  for (uint32_t index = 0; index < 3; ++index) {
    Member& member = members[index];
    member.device = fabric->CreateDevice(index);
    std::vector<DeviceGroup> own;
    for (const DeviceGroup& group : groups) {
      if (std::count(group.devices.begin(), group.devices.end(), index) > 0) own.push_back(group);
    }
    auto communicator = fabric->FactoryFor(index)(index, *member.device, own);
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    member.communicator = *std::move(communicator);
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<uint32_t>& devices = groups[g].devices;
      const auto found = std::find(devices.begin(), devices.end(), index);
      if (found == devices.end()) continue;
      CollectiveSpec spec;
      spec.devices = devices;
      spec.counts.assign(devices.size(), 1);
      spec.channel = static_cast<uint32_t>(g);
      Part& part = member.parts.emplace_back();
      part.group = g;
      part.value = *member.device->Allocate(3 * sizeof(float), MemoryKind::kDevice);
      part.host.assign(devices.size(), static_cast<float>(10 * g + index));
      part.event = member.device->CreateEvent();
      part.stream = member.device->CreateStream();
      auto collective = member.communicator->Create(spec, static_cast<int>(found - devices.begin()),
                                                    *part.stream, /*tells_failures=*/true);
      ASSERT_TRUE(collective.ok()) << collective.status();
      part.collective = *std::move(collective);
    }
  }
  std::vector<std::thread> threads;
  for (Member& member : members) {
    threads.emplace_back([&member] {
      for (Part& part : member.parts) {
        part.stream->Copy(part.value->data(), part.host.data(), part.host.size() * sizeof(float),
                          CopyKind::kHostToDevice);
      }
      for (int step = 0; step < 2; ++step) {
        for (Part& part : member.parts) {
          void* const tensor = part.value->data();
          const void* const input = tensor;
          EXPECT_EQ(part.collective->Launch({&input, &tensor, /*is_poisoned=*/false, kNoLaunch}),
                    absl::OkStatus());
        }
      }
      for (Part& part : member.parts) {
        part.stream->Copy(part.host.data(), part.value->data(), part.host.size() * sizeof(float),
                          CopyKind::kDeviceToHost);
        part.stream->Record(part.event.get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::pair<Stream*, Event*>> events;
  for (Member& member : members) {
    for (Part& part : member.parts) events.emplace_back(part.stream.get(), part.event.get());
  }
  Await(std::move(events));
  for (Member& member : members) {
    for (const Part& part : member.parts) {
      float sum = 0;
      const std::vector<uint32_t>& devices = groups[part.group].devices;
      for (const uint32_t index : devices) {
        sum += static_cast<float>(10 * part.group + index);
      }
      // The second step adds up the sums of the first.
      const auto n = static_cast<float>(devices.size());
      EXPECT_EQ(part.host, std::vector<float>(devices.size(), n * sum)) << part.group;
    }
  }
}

// From the device with the lower index and from the other one, with and without bytes.
TEST_P(StreamConformance, MessagesArrive) {
  for (const auto& [source, destination] : {std::pair(0u, 1u), std::pair(1u, 0u)}) {
    for (const uint64_t num_bytes : {0u, 1u, 100'003u}) {
      const CollectiveSpec spec = MessageOf(/*channel=*/4, source, destination, num_bytes);
      ASSERT_TRUE(transport::IsMessage(spec));
      SCOPED_TRACE(Describe(spec));
      const std::unique_ptr<StreamFabric> fabric = Make(2, {GroupOf(spec)});
      if (fabric == nullptr) return;
      StreamMembers members(spec, *fabric);
      for (uint64_t run = 0; run < 3; ++run) {
        const std::vector<Bytes> inputs = RandomInputsOf(spec, run);
        EXPECT_EQ(members.RunOnce(inputs), (std::vector<Bytes>{{}, inputs[0]}));
      }
    }
  }
}

// Each device sends to the other before it receives, and several times. The directions have
// communicators of their own, so that a send does not keep a receive from the device.
TEST_P(StreamConformance, MessagesInBothDirectionsDoNotWaitForEachOther) {
  constexpr int kRuns = 20;
  const CollectiveSpec specs[] = {MessageOf(0, 0, 1, sizeof(int32_t)),
                                  MessageOf(1, 1, 0, sizeof(int32_t))};
  const std::vector<DeviceGroup> groups = {GroupOf(specs[0]), GroupOf(specs[1])};
  const std::unique_ptr<StreamFabric> fabric = Make(2, groups);
  if (fabric == nullptr) return;
  struct Side {
    std::unique_ptr<Memory> value;
    std::unique_ptr<StreamCollective> message;
    std::unique_ptr<Event> event;
    std::unique_ptr<Stream> stream;
  };
  struct Member {
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> communicator;
    std::vector<int32_t> given;
    std::vector<int32_t> taken = std::vector<int32_t>(kRuns);
    Side send;
    Side receive;
  };
  std::vector<Member> members(2);
  for (uint32_t index = 0; index < 2; ++index) {
    Member& member = members[index];
    member.device = fabric->CreateDevice(index);
    auto communicator = fabric->FactoryFor(index)(index, *member.device, groups);
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    member.communicator = *std::move(communicator);
    for (int run = 0; run < kRuns; ++run) {
      member.given.push_back(100 * static_cast<int32_t>(index) + run);
    }
    for (const int rank : {0, 1}) {
      Side& side = rank == 0 ? member.send : member.receive;
      side.value = *member.device->Allocate(sizeof(int32_t), MemoryKind::kDevice);
      side.event = member.device->CreateEvent();
      side.stream = member.device->CreateStream();
      auto message = member.communicator->Create(specs[rank == 0 ? index : 1 - index], rank,
                                                 *side.stream, /*tells_failures=*/true);
      ASSERT_TRUE(message.ok()) << message.status();
      side.message = *std::move(message);
    }
  }
  std::vector<std::thread> threads;
  for (Member& member : members) {
    threads.emplace_back([&member] {
      void* const none = nullptr;
      for (int run = 0; run < kRuns; ++run) {
        Side& send = member.send;
        void* const sent = send.value->data();
        send.stream->Copy(sent, &member.given[run], sizeof(int32_t), CopyKind::kHostToDevice);
        EXPECT_EQ(send.message->Launch({&sent, &none, /*is_poisoned=*/false, kNoLaunch}),
                  absl::OkStatus());
        Side& receive = member.receive;
        void* const received = receive.value->data();
        EXPECT_EQ(receive.message->Launch({&none, &received, /*is_poisoned=*/false, kNoLaunch}),
                  absl::OkStatus());
        receive.stream->Copy(&member.taken[run], received, sizeof(int32_t),
                             CopyKind::kDeviceToHost);
      }
      member.send.stream->Record(member.send.event.get());
      member.receive.stream->Record(member.receive.event.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::pair<Stream*, Event*>> events;
  for (Member& member : members) {
    for (Side* side : {&member.send, &member.receive}) {
      events.emplace_back(side->stream.get(), side->event.get());
    }
  }
  Await(std::move(events));
  EXPECT_EQ(members[0].taken, members[1].given);
  EXPECT_EQ(members[1].taken, members[0].given);
}

// Whichever side it is.
TEST_P(StreamConformance, APoisonedSideOfAMessageIsToldToTheOtherUntilTheReset) {
  const CollectiveSpec spec = MessageOf(/*channel=*/0, 0, 1, /*num_bytes=*/64);
  for (const size_t poisoned : {0, 1}) {
    const std::unique_ptr<StreamFabric> fabric = Make(2, {GroupOf(spec)});
    if (fabric == nullptr) return;
    StreamMembers members(spec, *fabric);
    const size_t other = 1 - poisoned;
    members.LaunchAll(poisoned);
    members.LaunchAll();  // a sound run does not hide it
    members.AwaitAll();
    const StreamError* error = members[other].event->error();
    ASSERT_NE(error, nullptr) << poisoned;
    EXPECT_EQ(error->status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(error->launch, other);
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(members[rank].stream->Reset(), absl::OkStatus());
    }
    const std::vector<Bytes> inputs = RandomInputsOf(spec, 1);
    EXPECT_EQ(members.RunOnce(inputs)[1], inputs[0]);
    for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(members[rank].event->error(), nullptr);
  }
}

TEST_P(StreamConformance, APoisonedMemberIsToldToAllUntilTheReset) {
  const CollectiveSpec spec = AllReduceOf(3);
  const std::unique_ptr<StreamFabric> fabric = Make(3, {GroupOf(spec)});
  if (fabric == nullptr) return;
  StreamMembers members(spec, *fabric);
  members.LaunchAll(/*poisoned=*/1);
  members.LaunchAll();  // a sound run does not hide it
  members.AwaitAll();
  for (const size_t rank : {0, 2}) {
    const StreamError* error = members[rank].event->error();
    ASSERT_NE(error, nullptr) << rank;
    EXPECT_EQ(error->status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(error->launch, rank);
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(members[rank].stream->Reset(), absl::OkStatus());
  }
  members.LaunchAll();
  members.AwaitAll();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(members[rank].event->error(), nullptr);
}

TEST_P(StreamConformance, OneThatTellsNoFailuresLetsOthersGoOn) {
  const CollectiveSpec spec = AllReduceOf(2);
  const std::unique_ptr<StreamFabric> fabric = Make(2, {GroupOf(spec)});
  if (fabric == nullptr) return;
  StreamMembers members(spec, *fabric, 2, /*tells_failures=*/false);
  members.LaunchAll(/*poisoned=*/0);
  members.AwaitAll();
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(members[rank].event->error(), nullptr);
  // What follows is not poisoned.
  const std::vector<Bytes> inputs = RandomInputsOf(spec, 0);
  EXPECT_EQ(members.RunOnce(inputs), ReferenceCollective(spec, inputs));
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(members[rank].event->error(), nullptr);
}

// Programs that link the suite without devices of their own to run it on.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamConformance);

}  // namespace penstock::testing
