// Collectives through NCCL on a fake of its functions, which forms results on the host, and of GPUs
// whose streams are threads. The suite of StreamConformance runs on NCCL itself, too, where there
// are GPUs.

#include "transport/nccl/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/check_plan.h"
#include "actors/engine/device_communication.h"
#include "actors/engine/executor.h"
#include "base/gpu_stream.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/gpu.h"
#include "planner/plan/failure_flags.h"
#include "planner/plan/launch_order.h"
#include "planner/policy/policy.h"
#include "tests/support/engine_plan.h"
#include "tests/support/stream_conformance.h"
#include "transport/collective.h"
#include "transport/reduce.h"
#include "transport/transport.h"

namespace penstock::transport {
namespace {

using testing::AllReduceOf;
using testing::Bytes;
using ::testing::HasSubstr;
using testing::StreamConformance;
using testing::StreamMembers;

constexpr int64_t kTimeoutNs = 60'000'000'000;

// ---- A fake of a GPU.

class FakeEvent : public Event {
 public:
  bool IsDone() const override {
    const std::lock_guard<std::mutex> lock(mutex);
    return num_reached == num_recorded;
  }
  const StreamError* error() const override { return failure.status.ok() ? nullptr : &failure; }

  mutable std::mutex mutex;
  mutable std::condition_variable reached;
  int num_recorded = 0;
  int num_reached = 0;
  StreamError failure;
};

// The fault of the device that is current on a thread stands for the device.
thread_local const int32_t* current_device = nullptr;

// Runs its work in order, on a thread.
class FakeStream : public Stream, public GpuStream {
 public:
  explicit FakeStream(int32_t* device_fault)
      : device_fault_(device_fault), thread_([this] { Work(); }) {}
  ~FakeStream() override {
    Enqueue(nullptr);
    thread_.join();
  }

  void Enqueue(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

  void Copy(void* to, const void* from, size_t num_bytes, CopyKind) override {
    ++num_copies;
    Enqueue([=] {
      if (num_bytes > 0) std::memcpy(to, from, num_bytes);  // pointers may be null
    });
  }
  void Record(Event* event) override {
    auto* recorded = static_cast<FakeEvent*>(event);
    {
      const std::lock_guard<std::mutex> lock(recorded->mutex);
      ++recorded->num_recorded;
    }
    Enqueue([this, recorded] {
      const std::lock_guard<std::mutex> lock(recorded->mutex);
      const bool has_failed = peer_fault_.flags[0] != 0 || peer_fault_.flags[1] != 0;
      recorded->failure = {};
      if (has_failed) recorded->failure = {absl::AbortedError("peer"), peer_launch_};
      ++recorded->num_reached;
      recorded->reached.notify_all();
    });
  }
  void Wait(const Event* event) override {
    const auto* awaited = static_cast<const FakeEvent*>(event);
    const std::lock_guard<std::mutex> lock(awaited->mutex);
    Enqueue([awaited, number = awaited->num_recorded] {
      std::unique_lock<std::mutex> lock(awaited->mutex);
      awaited->reached.wait(lock, [&] { return awaited->num_reached >= number; });
    });
  }
  absl::Status Reset() override {
    for (volatile int32_t& flag : peer_fault_.flags) flag = 0;
    *device_fault_ = 0;
    ++num_resets_;
    return absl::OkStatus();
  }

  CUstream_st* handle() override {
    current_device = device_fault_;
    return reinterpret_cast<CUstream_st*>(this);
  }
  const volatile int32_t* device_fault() override { return device_fault_; }
  PeerFault* peer_fault() override { return &peer_fault_; }
  uint64_t num_resets() const override { return num_resets_; }
  void SetPeerLaunch(uint64_t launch) override { peer_launch_ = launch; }

  int num_copies = 0;  // that it was given

 private:
  void Work() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !work_.empty(); });
        next = std::move(work_.front());
        work_.pop_front();
      }
      if (next == nullptr) return;
      next();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  int32_t* const device_fault_;
  PeerFault peer_fault_;
  uint64_t num_resets_ = 0;
  uint64_t peer_launch_ = kNoLaunch;
  std::thread thread_;
};

class FakeGpu : public Device {
 public:
  std::string kind() const override { return "fake"; }
  bool is_synchronous() const override { return false; }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override {
    return memory_->Allocate(num_bytes, kind);
  }
  std::unique_ptr<Stream> CreateStream() override {
    return std::make_unique<FakeStream>(&device_fault);
  }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<FakeEvent>(); }

  int32_t device_fault = 0;

 private:
  const std::unique_ptr<Device> memory_ = CreateCpuDevice(1);
};

// ---- A fake of NCCL.

enum class CallKind {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kReduce,
  kBroadcast,
  kSend,
  kReceive
};

struct FakeCall {
  CallKind kind = CallKind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t operation = ncclSum;
  int peer = 0;
  uint64_t number = 0;  // of the communicator's collectives
};

DType TypeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt32:
      return DType::kI32;
    case ncclUint8:
      return DType::kU8;
    case ncclFloat64:
      return DType::kF64;
    case ncclFloat16:
      return DType::kF16;
    case ncclBfloat16:
      return DType::kBF16;
    default:
      return DType::kF32;
  }
}
ReduceOp OperationOf(ncclRedOp_t operation) {
  switch (operation) {
    case ncclMax:
      return ReduceOp::kMax;
    case ncclMin:
      return ReduceOp::kMin;
    case ncclProd:
      return ReduceOp::kProd;
    default:
      return ReduceOp::kSum;
  }
}

// What the members of a communicator share.
struct World {
  explicit World(int num_members) : n(num_members) {}

  const int n;
  std::mutex mutex;
  std::condition_variable changed;
  int num_joined = 0;
  bool is_aborted = false;
  std::map<uint64_t, std::map<int, std::pair<FakeCall, Bytes>>> collectives;  // by number and rank
  std::map<std::pair<int, int>, std::deque<Bytes>> messages;  // by source and target
  std::map<std::pair<int, int>, uint64_t> num_sent;           // likewise
  std::map<std::pair<int, int>, uint64_t> num_received;       // likewise

  // A group of calls of one member, on its stream. All of it is given before any of it is awaited,
  // and it ends when all that it has sent was received.
  void Run(int rank, const std::vector<FakeCall>& calls) {
    std::unique_lock<std::mutex> lock(mutex);
    for (const FakeCall& call : calls) Give(rank, call);
    changed.notify_all();
    for (const FakeCall& call : calls) {
      changed.wait(lock, [&] { return is_aborted || IsReady(rank, call); });
      if (is_aborted) return;
      Take(rank, call);
    }
    std::map<std::pair<int, int>, uint64_t> sent = num_sent;
    changed.wait(lock, [&] {
      return is_aborted || std::all_of(calls.begin(), calls.end(), [&](const FakeCall& call) {
               const std::pair<int, int> pair(rank, call.peer);
               return call.kind != CallKind::kSend || num_received[pair] >= sent[pair];
             });
    });
  }

 private:
  static size_t BytesOf(const FakeCall& call, size_t count) {
    return count * ByteSize(TypeOf(call.type));
  }
  static Bytes Contents(const void* from, size_t num_bytes) {
    const auto* bytes = static_cast<const std::byte*>(from);
    return Bytes(bytes, bytes + num_bytes);
  }

  void Give(int rank, const FakeCall& call) {
    if (call.kind == CallKind::kReceive) return;
    const bool is_whole = call.kind == CallKind::kReduceScatter;
    const bool has_input = call.kind != CallKind::kBroadcast || call.peer == rank;
    const size_t count = has_input ? call.count * (is_whole ? n : 1) : 0;
    Bytes contents = Contents(call.input, BytesOf(call, count));
    if (call.kind == CallKind::kSend) {
      messages[{rank, call.peer}].push_back(std::move(contents));
      ++num_sent[{rank, call.peer}];
    } else {
      collectives[call.number][rank] = {call, std::move(contents)};
    }
  }

  bool IsReady(int rank, const FakeCall& call) {
    if (call.kind == CallKind::kSend) return true;
    if (call.kind == CallKind::kReceive) return !messages[{call.peer, rank}].empty();
    return static_cast<int>(collectives[call.number].size()) == n;
  }

  // All members must make the same calls in the same order.
  void Take(int rank, const FakeCall& call) {
    if (call.kind == CallKind::kSend) return;
    if (call.kind == CallKind::kReceive) {
      std::deque<Bytes>& queue = messages[{call.peer, rank}];
      ASSERT_EQ(queue.front().size(), BytesOf(call, call.count));
      Put(queue.front(), call.output);
      queue.pop_front();
      ++num_received[{call.peer, rank}];
      changed.notify_all();
      return;
    }
    std::map<int, std::pair<FakeCall, Bytes>>& members = collectives[call.number];
    for (const auto& [other, given] : members) {
      ASSERT_EQ(given.first.kind, call.kind);
      ASSERT_EQ(given.first.count, call.count);
      ASSERT_EQ(given.first.type, call.type);
      ASSERT_EQ(given.first.peer, call.peer);
    }
    switch (call.kind) {
      case CallKind::kAllGather: {
        auto* to = static_cast<std::byte*>(call.output);
        for (int r = 0; r < n; ++r)
          to = std::copy(members[r].second.begin(), members[r].second.end(), to);
        return;
      }
      case CallKind::kBroadcast:
        return Put(members[call.peer].second, call.output);
      case CallKind::kReduce:
        if (rank == call.peer) Put(Folded(members, call, 0), call.output);
        return;
      case CallKind::kReduceScatter:
        return Put(Folded(members, call, rank), call.output);
      default:
        return Put(Folded(members, call, 0), call.output);
    }
  }

  static void Put(const Bytes& bytes, void* to) {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }

  // Block `block` of call.count elements, folded in the order of the ranks.
  Bytes Folded(std::map<int, std::pair<FakeCall, Bytes>>& members, const FakeCall& call,
               int block) const {
    const FoldFunction fold = FindFold(OperationOf(call.operation), TypeOf(call.type));
    const size_t size = BytesOf(call, call.count);
    const auto part = [&](int r) { return members[r].second.data() + block * size; };
    Bytes folded(part(0), part(0) + size);
    for (int r = 1; r < n; ++r) {
      fold(folded.data(), part(r), folded.data(), static_cast<int64_t>(call.count));
    }
    return folded;
  }
};

struct FakeComm {
  std::shared_ptr<World> world;
  int rank = 0;
  uint64_t num_collectives = 0;
  bool has_arrived = false;  // at its world
};

struct FakeNccl {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> worlds;  // by unique id
  int num_ids = 0;
  int num_inits = 0;
  int num_aborts = 0;
  std::atomic<int> num_asked = 0;  // for async_error
  ncclResult_t async_error = ncclSuccess;
  ncclResult_t launch_error = ncclSuccess;
  bool was_blocking = false;
  std::vector<int> max_blocks;     // of communicators, as they were made
  std::atomic<int> num_calls = 0;  // that move data
  std::atomic<int> num_looks = 0;  // for the state of a communicator
  // A device joins one group after another, in the order of its calls.
  bool joins_one_by_one = false;
  std::map<const int32_t*, std::deque<FakeComm*>> joining;  // by device

  // Lets devices join what they can.
  void Arrive() {
    const std::lock_guard<std::mutex> lock(mutex);
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (auto& [device, comms] : joining) {
        while (!comms.empty()) {
          FakeComm& comm = *comms.front();
          const std::lock_guard<std::mutex> world_lock(comm.world->mutex);
          if (!comm.has_arrived) {
            comm.has_arrived = has_moved = true;
            ++comm.world->num_joined;
          }
          if (joins_one_by_one && comm.world->num_joined < comm.world->n) break;
          comms.pop_front();
        }
      }
    }
  }
};
FakeNccl* fake = nullptr;

// What the calling thread has in its group.
struct OpenGroup {
  FakeComm* comm = nullptr;
  FakeStream* stream = nullptr;
  std::vector<FakeCall> calls;
};
thread_local OpenGroup group;

FakeComm* Of(ncclComm_t comm) { return reinterpret_cast<FakeComm*>(comm); }

ncclResult_t Add(FakeCall call, ncclComm_t comm, cudaStream_t stream) {
  if (fake->launch_error != ncclSuccess) return fake->launch_error;
  group.comm = Of(comm);
  group.stream = reinterpret_cast<FakeStream*>(stream);
  if (call.kind != CallKind::kSend && call.kind != CallKind::kReceive) {
    call.number = group.comm->num_collectives++;
  }
  group.calls.push_back(call);
  ++fake->num_calls;
  return ncclSuccess;
}

NcclApi FakeApi() {
  NcclApi api;
  api.get_version = [](int* version) {
    *version = 22809;
    return ncclSuccess;
  };
  api.get_error_string = [](ncclResult_t result) {
    return result == ncclRemoteError ? "remote error" : "some error";
  };
  api.get_last_error = [](ncclComm_t) { return "the last error"; };
  api.get_unique_id = [](ncclUniqueId* id) {
    const std::lock_guard<std::mutex> lock(fake->mutex);
    *id = {};
    std::snprintf(id->internal, sizeof(id->internal), "id %d", fake->num_ids++);
    return ncclSuccess;
  };
  api.init_rank = [](ncclComm_t* comm, int n, ncclUniqueId id, int rank, ncclConfig_t* config) {
    const std::lock_guard<std::mutex> lock(fake->mutex);
    fake->was_blocking = fake->was_blocking || config->blocking != 0;
    fake->max_blocks.push_back(config->maxCTAs);
    ++fake->num_inits;
    std::shared_ptr<World>& world = fake->worlds[id.internal];
    if (world == nullptr) world = std::make_shared<World>(n);
    auto* const joining = new FakeComm{world, rank};
    fake->joining[current_device].push_back(joining);
    *comm = reinterpret_cast<ncclComm_t>(joining);
    return ncclInProgress;
  };
  api.get_async_error = [](ncclComm_t comm, ncclResult_t* result) {
    ++fake->num_asked;
    fake->Arrive();
    ++fake->num_looks;
    World& world = *Of(comm)->world;
    const std::lock_guard<std::mutex> lock(world.mutex);
    *result = world.num_joined < world.n ? ncclInProgress : fake->async_error;
    return ncclSuccess;
  };
  api.abort = [](ncclComm_t comm) {
    {
      World& world = *Of(comm)->world;
      const std::lock_guard<std::mutex> lock(world.mutex);
      world.is_aborted = true;
      world.changed.notify_all();
    }
    const std::lock_guard<std::mutex> lock(fake->mutex);
    ++fake->num_aborts;
    for (auto& [device, comms] : fake->joining) std::erase(comms, Of(comm));
    delete Of(comm);
    return ncclSuccess;
  };
  api.group_start = [] {
    group = {};
    return ncclSuccess;
  };
  api.group_end = [] {
    if (!group.calls.empty()) {
      group.stream->Enqueue([world = group.comm->world, rank = group.comm->rank,
                             calls = group.calls] { world->Run(rank, calls); });
    }
    return ncclSuccess;
  };
  api.all_reduce = [](const void* in, void* out, size_t count, ncclDataType_t type,
                      ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    return Add({CallKind::kAllReduce, in, out, count, type, operation}, comm, stream);
  };
  api.reduce_scatter = [](const void* in, void* out, size_t count, ncclDataType_t type,
                          ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    return Add({CallKind::kReduceScatter, in, out, count, type, operation}, comm, stream);
  };
  api.all_gather = [](const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                      cudaStream_t stream) {
    return Add({CallKind::kAllGather, in, out, count, type}, comm, stream);
  };
  api.reduce = [](const void* in, void* out, size_t count, ncclDataType_t type,
                  ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream) {
    return Add({CallKind::kReduce, in, out, count, type, operation, root}, comm, stream);
  };
  api.broadcast = [](const void* in, void* out, size_t count, ncclDataType_t type, int root,
                     ncclComm_t comm, cudaStream_t stream) {
    return Add({CallKind::kBroadcast, in, out, count, type, ncclSum, root}, comm, stream);
  };
  api.send = [](const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                cudaStream_t stream) {
    return Add({CallKind::kSend, in, nullptr, count, type, ncclSum, peer}, comm, stream);
  };
  api.receive = [](void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                   cudaStream_t stream) {
    return Add({CallKind::kReceive, nullptr, out, count, type, ncclSum, peer}, comm, stream);
  };
  return api;
}

// ---- The suite.

std::unique_ptr<Device> CreateFakeGpu(uint32_t) { return std::make_unique<FakeGpu>(); }

std::shared_ptr<CommunicatorSource> CreateSource(const NcclOptions& options = {}) {
  return *CreateNcclSource(
      FakeApi(), [](uint32_t index) { return StrCat("GPU ", index); }, options);
}

// Until the next fabric is made.
void ResetFake() {
  static std::unique_ptr<FakeNccl> of_fabric;
  of_fabric = std::make_unique<FakeNccl>();
  fake = of_fabric.get();
}

testing::StreamFabricParam OnFake() {
  return {.name = "Fake",
          .make =
              [](uint32_t, const auto&) {
                ResetFake();
                return testing::MakeStreamFabric(CreateFakeGpu,
                                                 CreateNcclCommunicators(FakeApi(), {}));
              },
          // The fake folds in the order of the ranks.
          .association = testing::StreamFabricParam::kDirect};
}

testing::StreamFabricParam OnFakeInTwoProcesses() {
  return {.name = "FakeInTwoProcesses",
          .make =
              [](uint32_t, const auto& groups) {
                ResetFake();
                return testing::MakeStreamFabric(CreateFakeGpu, {CreateSource(), CreateSource()},
                                                 groups);
              },
          .association = testing::StreamFabricParam::kDirect};
}

// What NCCL of this machine joins, or why there is nothing.
absl::Status CheckGpus(uint32_t num_devices) {
  const kernels::GpuSystem gpus = kernels::FindGpus();
  if (!gpus.status.ok()) return gpus.status;
  if (gpus.gpus.size() < num_devices) {
    return absl::FailedPreconditionError(
        StrCat("there are ", gpus.gpus.size(), " GPUs, and this wants ", num_devices));
  }
  return FindNccl().status;
}

std::unique_ptr<Device> CreateGpu(uint32_t index) {
  return *kernels::CreateCudaDevice(static_cast<int>(index));
}

testing::StreamFabricParam OnGpus(bool has_ids) {
  return {.name = has_ids ? "GpusByIds" : "Gpus",
          .make = [has_ids](uint32_t num_devices, const auto& groups)
              -> absl::StatusOr<std::unique_ptr<testing::StreamFabric>> {
            RETURN_IF_ERROR(CheckGpus(num_devices));
            if (!has_ids) {
              return testing::MakeStreamFabric(CreateGpu, *CreateNcclCommunicators());
            }
            const auto source =
                *CreateNcclSource([](uint32_t index) { return StrCat("GPU ", index); });
            return testing::MakeStreamFabric(CreateGpu, {source, source}, groups);
          },
          .association = testing::StreamFabricParam::kUnknown,
          .num_collectives = 20};  // to join takes long
}

INSTANTIATE_TEST_SUITE_P(Nccl, StreamConformance,
                         ::testing::Values(OnFake(), OnFakeInTwoProcesses(), OnGpus(false),
                                           OnGpus(true)),
                         testing::StreamFabricParamName);

// ---- What is NCCL's own.

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  NcclCommunicatorTest() { fake = &fake_; }

  static std::unique_ptr<StreamMembers> Join(const CollectiveSpec& spec, size_t num_joining = 16,
                                             absl::Duration timeout = absl::Seconds(60),
                                             bool tells_failures = true) {
    const std::unique_ptr<testing::StreamFabric> fabric = testing::MakeStreamFabric(
        CreateFakeGpu, CreateNcclCommunicators(FakeApi(), {.timeout = timeout}));
    return std::make_unique<StreamMembers>(spec, *fabric, num_joining, tells_failures);
  }

  static bool IsDoneInTime(Event& event) {
    const SteadyClock clock;
    const int64_t deadline = clock.NowNs() + kTimeoutNs;
    while (!event.IsDone() && clock.NowNs() < deadline) std::this_thread::yield();
    return event.IsDone();
  }

  FakeNccl fake_;
};

TEST_F(NcclCommunicatorTest, CommunicatorsDoNotBlockAndAreAborted) {
  for (int i = 0; i < 3; ++i) {
    const std::unique_ptr<StreamMembers> members = Join(AllReduceOf(3));
    members->LaunchAll();
    members->AwaitAll();
  }
  EXPECT_FALSE(fake_.was_blocking);
  EXPECT_EQ(fake_.num_inits, 9);
  EXPECT_EQ(fake_.num_aborts, 9);
}

// Messages have a communicator for each direction, which takes few blocks, and exchange their flags
// by messages.
TEST_F(NcclCommunicatorTest, MessagesHaveCommunicatorsOfTheirOwn) {
  const std::vector<CollectiveSpec> specs = {AllReduceOf(2), MessageOf(1, 0, 1, 8),
                                             MessageOf(2, 1, 0, 8), MessageOf(3, 0, 1, 65'537)};
  std::vector<DeviceGroup> groups;
  for (const CollectiveSpec& spec : specs) groups.push_back(GroupOf(spec));
  const CommunicatorFactory factory = CreateNcclCommunicators(FakeApi(), {});
  FakeGpu gpus[2];
  std::unique_ptr<Communicator> communicators[2];
  for (uint32_t i = 0; i < 2; ++i) communicators[i] = *factory(i, gpus[i], groups);
  constexpr int kAny = NCCL_CONFIG_UNDEF_INT;
  EXPECT_THAT(fake_.max_blocks, ::testing::ElementsAre(kAny, 1, 1, 4, kAny, 1, 1, 4));
  std::vector<std::byte> values[2] = {std::vector<std::byte>(8, std::byte{7}),
                                      std::vector<std::byte>(8)};
  std::unique_ptr<StreamCollective> sides[2];
  std::unique_ptr<Event> events[2];
  std::unique_ptr<Stream> streams[2];
  for (const int rank : {0, 1}) {
    streams[rank] = gpus[rank].CreateStream();
    events[rank] = gpus[rank].CreateEvent();
    sides[rank] = *communicators[rank]->Create(specs[1], rank, *streams[rank], true);
    void* const value = values[rank].data();
    void* const none = nullptr;
    EXPECT_EQ(sides[rank]->Launch({rank == 0 ? &value : &none, rank == 0 ? &none : &value,
                                   /*is_poisoned=*/false, kNoLaunch}),
              absl::OkStatus());
    streams[rank]->Record(events[rank].get());
    if (rank == 0) {
      EXPECT_FALSE(events[0]->IsDone());  // the receive has not been launched
    }
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ(WaitUntilDone(*streams[rank], *events[rank], kTimeoutNs), absl::OkStatus());
  }
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(fake_.num_calls, 6);  // a message and two flags, on either side
}

// A stage that sends to one that is gone lets go when its communicator does.
TEST_F(NcclCommunicatorTest, AbortsASendWhoseReceiverIsGone) {
  const std::unique_ptr<StreamMembers> members = Join(MessageOf(0, 0, 1, 64));
  EXPECT_EQ(members->Launch(0), absl::OkStatus());
  EXPECT_FALSE((*members)[0].event->IsDone());
  (*members)[0].communicator = nullptr;
  ASSERT_TRUE(IsDoneInTime(*(*members)[0].event));
  EXPECT_EQ(members->Launch(0),
            absl::CancelledError("NCCL on device 0, small messages from device 0 to "
                                 "device 1: closed"));
}

// ---- Groups of several processes.

// A process with one device, 0 or 1, and its communicator.
struct Process {
  explicit Process(uint32_t index) : gpu(std::make_unique<FakeGpu>()), index(index) {}

  // Joins the groups, and creates a collective of the first of them.
  absl::Status Run(GroupIds ids, const std::vector<DeviceGroup>& groups, absl::Duration timeout) {
    const std::shared_ptr<CommunicatorSource> source = CreateSource({.timeout = timeout});
    ASSIGN_OR_RETURN(communicator, source->CreateFactory(std::move(ids))(index, *gpu, groups));
    stream = gpu->CreateStream();
    event = gpu->CreateEvent();
    CollectiveSpec spec = AllReduceOf(2);
    spec.devices = groups.front().devices;
    const int rank = spec.devices[0] == index ? 0 : 1;
    ASSIGN_OR_RETURN(collective, communicator->Create(spec, rank, *stream, true));
    return absl::OkStatus();
  }

  absl::Status Launch() {
    void* const tensor = value.data();
    const void* const input = tensor;
    const absl::Status status =
        collective->Launch({&input, &tensor, /*is_poisoned=*/false, kNoLaunch});
    stream->Record(event.get());
    return status;
  }

  std::unique_ptr<FakeGpu> gpu;
  const uint32_t index;
  std::vector<float> value = std::vector<float>(8, 1);
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<StreamCollective> collective;
  std::unique_ptr<Event> event;
  std::unique_ptr<Stream> stream;
};

// Two groups of the same devices. Where a device joins one after the other, only one order will do.
TEST_F(NcclCommunicatorTest, ProcessesJoinTheirGroupsInOneOrder) {
  const DeviceGroup forward = {0, 1};
  const DeviceGroup backward = {1, 0};
  for (const bool is_reversed : {false, true}) {
    fake_.joins_one_by_one = true;
    const std::shared_ptr<CommunicatorSource> maker = CreateSource();
    const GroupIds ids = {{forward, *maker->CreateGroupId()}, {backward, *maker->CreateGroupId()}};
    Process first(0);
    Process second(1);
    const absl::Duration timeout = is_reversed ? absl::Milliseconds(100) : absl::Seconds(60);
    ASSERT_EQ(first.Run(ids, {forward, backward}, timeout), absl::OkStatus());
    ASSERT_EQ(second.Run(ids,
                         is_reversed ? std::vector<DeviceGroup>{backward, forward}
                                     : std::vector<DeviceGroup>{forward, backward},
                         timeout),
              absl::OkStatus());
    const absl::Status status = first.Launch();
    if (is_reversed) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      continue;
    }
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(second.Launch(), absl::OkStatus());
    EXPECT_EQ(WaitUntilDone(*first.stream, *first.event, kTimeoutNs), absl::OkStatus());
    EXPECT_EQ(first.value[0], 2);
    EXPECT_EQ(fake_.num_ids, 2);
    EXPECT_EQ(fake_.num_inits, 4);
  }
  EXPECT_FALSE(fake_.was_blocking);
}

// Each process waits, and says which member waits in which group.
TEST_F(NcclCommunicatorTest, AProcessThatDoesNotJoinEndsTheWait) {
  const DeviceGroup group = {0, 1};
  const GroupIds ids = {{group, *CreateSource()->CreateGroupId()}};
  Process process(1);
  ASSERT_EQ(process.Run(ids, {group}, absl::Milliseconds(50)), absl::OkStatus());
  const absl::Status status = process.Launch();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              ::testing::StartsWith("NCCL on device 1 in the group of 2 devices 0, 1: after 50ms, "
                                    "not all of them have joined"));
  EXPECT_EQ(fake_.num_aborts, 1);
  EXPECT_EQ(process.Launch(), status);
}

// The end of the session ends the wait at once.
TEST_F(NcclCommunicatorTest, ACancelledMemberWaitsNoMore) {
  const DeviceGroup group = {0, 1};
  const GroupIds ids = {{group, *CreateSource()->CreateGroupId()}};
  Process process(0);
  ASSERT_EQ(process.Run(ids, {group}, absl::Hours(1)), absl::OkStatus());
  fake_.num_looks = 0;
  std::thread launch([&process] {
    EXPECT_EQ(process.Launch(),
              absl::CancelledError(
                  "NCCL on device 0 in the group of 2 devices 0, 1: the session has ended"));
  });
  // The second look of a launch is one of its wait.
  const SteadyClock clock;
  const int64_t deadline = clock.NowNs() + kTimeoutNs;
  while (fake_.num_looks < 2 && clock.NowNs() < deadline) std::this_thread::yield();
  EXPECT_GE(fake_.num_looks, 2);
  process.communicator->Cancel();
  launch.join();
  EXPECT_EQ(fake_.num_aborts, 1);
}

TEST_F(NcclCommunicatorTest, AGroupNeedsAnId) {
  const DeviceGroup group = {0, 1};
  const std::string id = *CreateSource()->CreateGroupId();
  EXPECT_EQ(id.size(), sizeof(ncclUniqueId));
  for (const GroupIds& ids :
       {GroupIds(), GroupIds({{{0, 2}, id}}), GroupIds({{group, id.substr(1)}})}) {
    EXPECT_EQ(
        Process(0).Run(ids, {group}, absl::Seconds(60)),
        absl::InvalidArgumentError("there is no unique id of NCCL for the group of devices 0, 1"));
  }
  EXPECT_EQ(Process(2).Run({{group, id}}, {group}, absl::Seconds(60)),
            absl::InvalidArgumentError("device 2 is not in the group of devices 0, 1"));
  EXPECT_EQ(fake_.num_inits, 0);
}

TEST_F(NcclCommunicatorTest, ASourceNamesTheVersionAndTheGpu) {
  EXPECT_EQ(CreateSource()->name(), "NCCL 2.28.9");
  EXPECT_EQ(CreateSource()->HardwareOf(3), "GPU 3");
}

TEST_F(NcclCommunicatorTest, AGroupHasOneCommunicator) {
  const CollectiveSpec spec = AllReduceOf(3);
  const std::unique_ptr<StreamMembers> members = Join(spec);
  std::vector<std::unique_ptr<StreamCollective>> others;
  for (size_t rank = 0; rank < 3; ++rank) {
    StreamMembers::Member& member = (*members)[rank];
    auto other = member.communicator->Create(spec, static_cast<int>(rank), *member.stream,
                                             /*tells_failures=*/true);
    ASSERT_TRUE(other.ok()) << other.status();
    others.push_back(*std::move(other));
  }
  EXPECT_EQ(fake_.num_inits, 3);
  EXPECT_EQ(fake_.num_ids, 1);
}

// Two all-reduces of the devices 0 and 1, each on a stream of its own, that rank 0 launches in one
// order and rank 1 in the other. Terms are 1 and 10 of the first, 2 and 20 of the second. The sums
// of rank 0, of the first and of the second.
std::pair<float, float> SumsOfOppositeOrders() {
  const CommunicatorFactory factory = CreateNcclCommunicators(FakeApi(), {});
  CollectiveSpec spec = AllReduceOf(2);
  struct Part {
    std::vector<float> value = std::vector<float>(8);
    std::unique_ptr<StreamCollective> collective;
    std::unique_ptr<Event> event;
    std::unique_ptr<Stream> stream;
  };
  const DeviceGroup groups[] = {GroupOf(spec)};
  FakeGpu gpus[2];
  std::unique_ptr<Communicator> communicators[2];
  Part parts[2][2];  // by rank and collective
  for (int rank = 0; rank < 2; ++rank) {
    communicators[rank] = *factory(static_cast<uint32_t>(rank), gpus[rank], groups);
    for (int c = 0; c < 2; ++c) {
      Part& part = parts[rank][c];
      part.value.assign(8, static_cast<float>((c + 1) * (rank == 0 ? 1 : 10)));
      part.event = gpus[rank].CreateEvent();
      part.stream = gpus[rank].CreateStream();
      spec.channel = static_cast<uint32_t>(c);
      part.collective = *communicators[rank]->Create(spec, rank, *part.stream,
                                                     /*tells_failures=*/true);
    }
  }
  for (int place = 0; place < 2; ++place) {
    for (int rank = 0; rank < 2; ++rank) {
      Part& part = parts[rank][rank == 0 ? place : 1 - place];
      void* const tensor = part.value.data();
      const void* const input = tensor;
      EXPECT_EQ(part.collective->Launch({&input, &tensor, /*is_poisoned=*/false, kNoLaunch}),
                absl::OkStatus());
      part.stream->Record(part.event.get());
    }
  }
  for (auto& of_rank : parts) {
    for (Part& part : of_rank) {
      EXPECT_EQ(WaitUntilDone(*part.stream, *part.event, kTimeoutNs), absl::OkStatus());
    }
  }
  return {parts[0][0].value[0], parts[0][1].value[0]};
}

// Why the engine lays one order over the launches of a communicator (planner/plan/launch_order.h).
TEST_F(NcclCommunicatorTest, MatchesLaunchesByTheirOrder) {
  EXPECT_EQ(SumsOfOppositeOrders(), std::pair(21.0f, 12.0f));  // wrong sums
  EXPECT_EQ(fake_.num_inits, 2);
}

// NCCL's one call, and no copies.
TEST_F(NcclCommunicatorTest, OneThatTellsNoFailuresExchangesNoFlags) {
  for (const bool tells_failures : {true, false}) {
    fake_.num_calls = 0;
    const std::unique_ptr<StreamMembers> members =
        Join(AllReduceOf(2), 2, absl::Seconds(60), tells_failures);
    for (size_t rank = 0; rank < 2; ++rank) {
      static_cast<FakeStream&>(*(*members)[rank].stream).num_copies = 0;
    }
    members->LaunchAll(/*poisoned=*/1);
    members->AwaitAll();
    EXPECT_EQ(fake_.num_calls, tells_failures ? 4 : 2);
    EXPECT_EQ(static_cast<FakeStream&>(*(*members)[1].stream).num_copies, tells_failures ? 3 : 0);
    EXPECT_EQ((*members)[0].event->error() != nullptr, tells_failures);
  }
}

TEST_F(NcclCommunicatorTest, AFaultOfADeviceIsToldToAll) {
  const std::unique_ptr<StreamMembers> members = Join(AllReduceOf(2));
  static_cast<FakeGpu&>(*(*members)[0].device).device_fault = 1;
  members->LaunchAll();
  members->AwaitAll();
  ASSERT_NE((*members)[1].event->error(), nullptr);
  EXPECT_EQ((*members)[1].event->error()->status.code(), absl::StatusCode::kAborted);
}

TEST_F(NcclCommunicatorTest, AMemberThatDoesNotJoinEndsTheWait) {
  const std::unique_ptr<StreamMembers> members = Join(AllReduceOf(3), 2, absl::Milliseconds(50));
  const absl::Status status = members->Launch(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  const std::string message(status.message());
  EXPECT_THAT(message,
              ::testing::StartsWith("NCCL on device 0 in the group of 3 devices 0, 1, 2: after "
                                    "50ms, not all of them have joined"));
  EXPECT_THAT(message, ::testing::HasSubstr("NCCL_DEBUG=INFO"));
  EXPECT_EQ(fake_.num_aborts, 1);
  EXPECT_EQ(members->Launch(0), status);
}

TEST_F(NcclCommunicatorTest, AnErrorThatComesLaterAbortsTheCommunicator) {
  const std::unique_ptr<StreamMembers> members = Join(AllReduceOf(2));
  members->LaunchAll();
  members->AwaitAll();
  fake_.async_error = ncclRemoteError;
  const absl::Status status = members->Launch(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("remote error (the last error)"));
  EXPECT_EQ(fake_.num_aborts, 1);
  EXPECT_EQ(members->Launch(0), status);
}

TEST_F(NcclCommunicatorTest, AFailedLaunchAbortsTheCommunicator) {
  const std::unique_ptr<StreamMembers> members = Join(AllReduceOf(2));
  fake_.launch_error = ncclInvalidArgument;
  EXPECT_THAT(std::string(members->Launch(0).message()),
              HasSubstr("NCCL on device 0 in the group of 2 devices 0, 1: launching: some error"));
  EXPECT_EQ(fake_.num_aborts, 1);
}

// A member that waits on its device for one that is gone lets go when its communicator does.
TEST_F(NcclCommunicatorTest, AbortsWhatWaitsForAMemberThatIsGone) {
  const std::unique_ptr<StreamMembers> members = Join(AllReduceOf(2));
  EXPECT_EQ(members->Launch(0), absl::OkStatus());
  EXPECT_FALSE((*members)[0].event->IsDone());
  (*members)[0].communicator = nullptr;
  ASSERT_TRUE(IsDoneInTime(*(*members)[0].event));
  EXPECT_EQ(members->Launch(0).code(), absl::StatusCode::kCancelled);
}

class NcclStepObserver final : public actors::ExecutorObserver {
 public:
  void OnStepDone(const actors::DeviceStepReport& report) override {
    ++num_done;
    is_poisoned = report.is_poisoned;
  }
  void OnError(uint32_t, int64_t, const absl::Status& status) override { error = status; }
  void OnFailure(const absl::Status& status) override { failure = status; }

  int num_done = 0;
  bool is_poisoned = false;
  absl::Status error;
  absl::Status failure;
};

// An executor that waits for a collective launches nothing, so it has to ask for errors.
TEST_F(NcclCommunicatorTest, AnErrorEndsAStepThatWaitsForAMemberThatIsGone) {
  testing::EnginePlanBuilder builder;
  for (const uint32_t d : {0u, 1u}) builder.AddDevice(d);
  const uint32_t spec = builder.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, {2, 2},
                                                  /*per_microbatch=*/false);
  for (const uint32_t d : {0u, 1u}) {
    const uint32_t in = builder.AddRegister(d, 1, /*per_microbatch=*/false);
    const uint32_t out = builder.AddRegister(d, 1, /*per_microbatch=*/false);
    builder.BeginPhase(d, "after", planner::PhaseKind::kAfterStep, planner::Lane::kPerStep,
                       /*per_microbatch=*/false);
    const uint32_t made = builder.AddKernel(d, "made", "t.iota", {}, {in});
    builder.AddChannel(d, made, builder.AddCollective(d, "sum", spec, in, out));
  }
  const planner::Plan plan = builder.Build();
  ASSERT_EQ(actors::CheckPlan(plan), absl::OkStatus());
  const auto order = planner::OrderLaunches(plan, planner::BuiltinPolicies());
  ASSERT_TRUE(order.ok()) << order.status();
  const std::vector<bool> tells_failures = planner::CollectivesThatTellFailures(plan);
  const DeviceGroup groups[] = {{0, 1}};
  const CommunicatorFactory factory = CreateNcclCommunicators(FakeApi(), {});
  FakeGpu gpus[2];
  std::unique_ptr<Communicator> communicators[2];
  for (uint32_t i = 0; i < 2; ++i) communicators[i] = *factory(i, gpus[i], groups);
  const std::unique_ptr<Memory> arena =
      *gpus[0].Allocate(plan.devices[0].arena_bytes, MemoryKind::kDevice);
  const kernels::KernelRegistry kernels = testing::EngineTestKernels();
  const std::unique_ptr<Transport> transport =
      CreateInprocTransport({.num_devices = 2, .num_channels = actors::NumTransportChannels(plan)});
  Endpoint* const endpoint = *transport->OpenEndpoint(0);
  actors::DeviceCommunication communication(endpoint, nullptr, nullptr);
  NcclStepObserver observer;
  const SteadyClock clock;
  actors::ExecutorParts parts;
  parts.plan = &plan;
  parts.target.device = &gpus[0];
  parts.target.kernels = &kernels;
  parts.target.arena = arena->data();
  parts.target.endpoint = endpoint;
  parts.target.communicator = communicators[0].get();
  parts.target.launch_order = &*order;
  parts.target.tells_failures = &tells_failures;
  parts.communication = &communication;
  parts.observer = &observer;
  parts.clock = &clock;
  auto executor = actors::DeviceExecutor::Create(parts, {});
  ASSERT_TRUE(executor.ok()) << executor.status();

  // Device 1 has joined the group, and launches nothing.
  (*executor)->SubmitStep(0, std::make_shared<actors::StepBuffers>());
  const auto poll_until = [&](const auto& is_over) {
    const int64_t deadline = clock.NowNs() + kTimeoutNs;
    while (!is_over() && clock.NowNs() < deadline) {
      (*executor)->Poll();
      std::this_thread::yield();
    }
    return is_over();
  };
  EXPECT_TRUE(poll_until([&] { return fake_.num_calls > 0; }));
  const int num_asked = fake_.num_asked;
  EXPECT_TRUE(poll_until([&] { return fake_.num_asked > num_asked + 1; }));
  EXPECT_EQ(observer.error, absl::OkStatus());
  EXPECT_EQ(observer.num_done, 0);
  fake_.async_error = ncclRemoteError;
  EXPECT_TRUE(poll_until([&] { return observer.num_done > 0; }));
  EXPECT_EQ(observer.error, absl::UnavailableError(
                                "actor sum on device 0, step 1: NCCL on device 0 in the group of "
                                "2 devices 0, 1: a run before: remote error (the last error)"));
  EXPECT_EQ(observer.failure, observer.error);
  EXPECT_TRUE(observer.is_poisoned);
  EXPECT_EQ(fake_.num_aborts, 1);
  (*executor)->Cancel();
  communicators[0] = nullptr;  // before the streams, as engines do
}

TEST_F(NcclCommunicatorTest, RefusesWhatItCannotDo) {
  const CommunicatorFactory factory = CreateNcclCommunicators(FakeApi(), {});
  const std::unique_ptr<Device> cpu = CreateCpuDevice(1);
  EXPECT_EQ(factory(0, *cpu, {}).status(),
            absl::FailedPreconditionError("collectives of NCCL need GPUs, not a cpu device"));
  FakeGpu gpu;
  const std::unique_ptr<Stream> gpu_stream = gpu.CreateStream();
  CollectiveSpec bools = AllReduceOf(1);
  bools.dtype = DType::kBool;
  auto of_gpu = factory(0, gpu, {});
  ASSERT_TRUE(of_gpu.ok());
  EXPECT_EQ((*of_gpu)->Create(bools, 0, *gpu_stream, /*tells_failures=*/true).status(),
            absl::UnimplementedError("NCCL has no sums and products of bool"));
  EXPECT_EQ((*of_gpu)->Create(AllReduceOf(1), 0, *gpu_stream, /*tells_failures=*/true).status(),
            absl::FailedPreconditionError("device 0 has not joined the group of devices 0"));
}

TEST(NcclTest, TheLibraryIsLoadedOrMissed) {
  const NcclSystem system = FindNccl();
  if (system.status.ok()) {
    EXPECT_GE(system.version, 21400);
  } else {
    EXPECT_EQ(system.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(system.status.message()), HasSubstr("libnccl.so.2"));
  }
}

}  // namespace
}  // namespace penstock::transport
