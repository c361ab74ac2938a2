#include "transport/nccl/nccl_communicator.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"

#include "base/counted.h"
#include "base/gpu_stream.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::transport {
namespace {

// For errors: the member and its group.
std::string Describe(uint32_t device, const DeviceGroup& group) {
  if (group.use != GroupUse::kCollectives) {
    return StrCat("NCCL on device ", device, ", ", ToString(group));
  }
  constexpr size_t kMaxNamed = 16;
  const std::vector<uint32_t>& all = group.devices;
  const std::vector<uint32_t> named(all.begin(), all.begin() + std::min(all.size(), kMaxNamed));
  return StrCat("NCCL on device ", device, " in the group of ", Counted(all.size(), "device"), " ",
                StrJoin(named, ", "), named.size() < all.size() ? ", ..." : "");
}

absl::StatusOr<ncclDataType_t> TypeOf(const CollectiveSpec& spec) {
  switch (spec.dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI8:
      return ncclInt8;
    case DType::kU8:
      return ncclUint8;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kBool:
      break;
  }
  const bool reduces =
      spec.kind == CollectiveKind::kAllReduce || spec.kind == CollectiveKind::kReduceScatter;
  if (reduces && (spec.reduce == ReduceOp::kSum || spec.reduce == ReduceOp::kProd)) {
    return absl::UnimplementedError("NCCL has no sums and products of bool");
  }
  return ncclUint8;  // 0 and 1: the largest and the smallest are the same
}

ncclRedOp_t OperationOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kProd:
      return ncclProd;
    case ReduceOp::kSum:
      break;
  }
  return ncclSum;
}

// A communicator of NCCL: one member's part.
class NcclGroup {
 public:
  // Waits end with `is_cancelled`.
  NcclGroup(const NcclApi& api, const NcclOptions& options, uint32_t device,
            const DeviceGroup& group, std::shared_ptr<const std::atomic<bool>> is_cancelled)
      : api_(api),
        options_(options),
        what_(Describe(device, group)),
        use_(group.use),
        is_cancelled_(std::move(is_cancelled)) {}
  ~NcclGroup() { Abort(); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // REQUIRES: the member's device is current.
  absl::Status Join(const ncclUniqueId& id, int num_members, int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0)
    if (use_ == GroupUse::kMessages) config.maxCTAs = kMessageBlocks;
    if (use_ == GroupUse::kSmallMessages) config.maxCTAs = kSmallMessageBlocks;
#endif
    const ncclResult_t result = api_.init_rank(&comm_, num_members, id, rank, &config);
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return Fail(result, "joining");
  }

  // OK once all members have joined and none has failed, as far as is known.
  absl::Status MakeReady() {
    RETURN_IF_ERROR(failure_);
    if (!has_joined_) {
      RETURN_IF_ERROR(
          Await("not all of them have joined, perhaps because a member's process has failed or "
                "waits for something else: look for its error above; NCCL_DEBUG=INFO "
                "makes NCCL say what it waits for, and NCCL_SOCKET_IFNAME sets the "
                "network interface that it uses"));
      has_joined_ = true;
      return absl::OkStatus();
    }
    return AskState();
  }

  // OK where no member has failed, as far as is known. Does not wait.
  absl::Status Poll() {
    RETURN_IF_ERROR(failure_);
    return AskState();
  }

  // What a call that belongs to a launch returned.
  absl::Status Check(ncclResult_t result) {
    if (result == ncclSuccess) return absl::OkStatus();
    if (result == ncclInProgress) return Await("a launch does not end");
    return Fail(result, "launching");
  }

  // Ends what waits on the device for other members. Launches fail from now on.
  void Close() {
    Abort();
    if (failure_.ok()) failure_ = absl::CancelledError(StrCat(what_, ": closed"));
  }

  ncclComm_t comm() const { return comm_; }
  const NcclApi& api() const { return api_; }

 private:
  // NCCL finds out by itself that it cannot reach a member, and tells whoever asks.
  absl::Status AskState() {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = api_.get_async_error(comm_, &state);
    if (asked != ncclSuccess) return Fail(asked, "asking for its state");
    if (state == ncclSuccess || state == ncclInProgress) return absl::OkStatus();
    return Fail(state, "a run before");
  }

  // Polls until NCCL has done what it was asked for.
  absl::Status Await(std::string_view why_not) {
    const absl::Time begin = absl::Now();
    const absl::Time deadline = begin + options_.timeout;
    for (;;) {
      if (is_cancelled_->load(std::memory_order_relaxed)) {
        return Fail(absl::CancelledError(StrCat(what_, ": the session has ended")));
      }
      ncclResult_t state = ncclInProgress;
      const ncclResult_t asked = api_.get_async_error(comm_, &state);
      if (asked != ncclSuccess) return Fail(asked, "asking for its state");
      if (state == ncclSuccess) return absl::OkStatus();
      if (state != ncclInProgress) return Fail(state, "joining or launching");
      const absl::Time now = absl::Now();
      if (now >= deadline) {
        return Fail(absl::DeadlineExceededError(StrCat(
            what_, ": after ", ToStd(absl::FormatDuration(options_.timeout)), ", ", why_not)));
      }
      if (now - begin < kSpinTime) {
        sched_yield();
      } else {
        absl::SleepFor(kPollInterval);
      }
    }
  }

  absl::Status Fail(ncclResult_t result, std::string_view doing) {
    const char* detail = comm_ != nullptr ? api_.get_last_error(comm_) : nullptr;
    std::string message = StrCat(what_, ": ", doing, ": ", api_.get_error_string(result));
    if (detail != nullptr && *detail != '\0') StrAppend(&message, " (", detail, ")");
    // That a member is gone explains it, if that is so.
    const bool is_of_another = result == ncclRemoteError;
    return Fail(is_of_another ? absl::UnavailableError(message) : absl::InternalError(message));
  }
  absl::Status Fail(absl::Status status) {
    Abort();
    failure_ = std::move(status);
    return failure_;
  }

  void Abort() {
    if (comm_ != nullptr) api_.abort(comm_);
    comm_ = nullptr;
  }

  // A launch is waited for briefly, other members perhaps for long.
  static constexpr absl::Duration kSpinTime = absl::Milliseconds(1);
  static constexpr absl::Duration kPollInterval = absl::Microseconds(50);

  const NcclApi api_;
  const NcclOptions options_;
  const std::string what_;  // for errors
  const GroupUse use_;
  const std::shared_ptr<const std::atomic<bool>> is_cancelled_;
  ncclComm_t comm_ = nullptr;
  bool has_joined_ = false;
  absl::Status failure_;  // the first failure
};

// One call of NCCL that a run makes. Places are in bytes.
struct NcclCall {
  enum Kind : uint8_t {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kReduce,
    kBroadcast,
    kSend,
    kReceive
  };
  Kind kind;
  size_t tensor = 0;
  int64_t input = 0;
  int64_t output = 0;
  int64_t count = 0;
  int peer = 0;  // or root
};

// The calls of a rank. Uneven pieces are reduced or broadcast one by one.
std::vector<NcclCall> CallsOf(const CollectiveSpec& spec, int rank) {
  const auto n = static_cast<int>(spec.devices.size());
  const auto element_bytes = static_cast<int64_t>(ByteSize(spec.dtype));
  std::vector<NcclCall> calls;
  const auto add = [&calls](const NcclCall& call) {
    if (call.count > 0) calls.push_back(call);
  };
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      add({.kind = NcclCall::kAllReduce,
           .count = std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0})});
      break;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather: {
      const bool gathers = spec.kind == CollectiveKind::kAllGather;
      for (size_t t = 0; t < NumTensors(spec); ++t) {
        const std::vector<int64_t>& counts = spec.tensors.empty() ? spec.counts : spec.tensors[t];
        if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) ==
            counts.end()) {
          add({.kind = gathers ? NcclCall::kAllGather : NcclCall::kReduceScatter,
               .tensor = t,
               .count = counts[0]});
          continue;
        }
        int64_t at = 0;
        for (int r = 0; r < n; ++r) {
          add({.kind = gathers ? NcclCall::kBroadcast : NcclCall::kReduce,
               .tensor = t,
               .input = gathers ? 0 : at,
               .output = gathers ? at : 0,
               .count = counts[r],
               .peer = r});
          at += counts[r] * element_bytes;
        }
      }
      break;
    }
    case CollectiveKind::kAllToAll: {
      int64_t input = 0;
      int64_t output = 0;
      for (int peer = 0; peer < n; ++peer) {
        const int64_t sent = spec.counts[rank * n + peer];
        const int64_t received = spec.counts[peer * n + rank];
        add({.kind = NcclCall::kSend, .input = input, .count = sent, .peer = peer});
        add({.kind = NcclCall::kReceive, .output = output, .count = received, .peer = peer});
        input += sent * element_bytes;
        output += received * element_bytes;
      }
      break;
    }
    case CollectiveKind::kBroadcast:
      add({.kind = NcclCall::kBroadcast,
           .count = spec.counts[0],
           .peer = static_cast<int>(spec.root)});
      break;
    case CollectiveKind::kPermute: {
      const auto source = std::find(spec.peers.begin(), spec.peers.end(), rank);
      add({.kind = NcclCall::kSend,
           .count = spec.counts[rank],
           .peer = static_cast<int>(spec.peers[rank])});
      add({.kind = NcclCall::kReceive,
           .count = spec.counts[source - spec.peers.begin()],
           .peer = static_cast<int>(source - spec.peers.begin())});
      break;
    }
  }
  return calls;
}

constexpr size_t kNumFlags = 2;  // the device has a fault; a run was poisoned
constexpr size_t kFlagBytes = kNumFlags * sizeof(int32_t);

class NcclCollective final : public StreamCollective {
 public:
  NcclCollective(std::shared_ptr<NcclGroup> group, const CollectiveSpec& spec, int rank,
                 ncclDataType_t type, Stream& stream, GpuStream& gpu_stream,
                 std::unique_ptr<Memory> flags, std::shared_ptr<Memory> constants)
      : group_(std::move(group)),
        calls_(CallsOf(spec, rank)),
        peer_(IsMessage(spec) ? 1 - rank : kNoPeer),
        type_(type),
        operation_(OperationOf(spec.reduce)),
        stream_(stream),
        gpu_stream_(gpu_stream),
        flags_(std::move(flags)),
        constants_(std::move(constants)) {}

  absl::Status Launch(const StreamCollectiveArgs& args) override {
    CUstream_st* const stream = gpu_stream_.handle();
    if (stream == nullptr) {
      return absl::FailedPreconditionError("a collective has a stream that could not be made");
    }
    RETURN_IF_ERROR(group_->MakeReady());
    if (flags_ != nullptr) SetFlags(args.is_poisoned);
    const NcclApi& api = group_->api();
    RETURN_IF_ERROR(group_->Check(api.group_start()));
    ncclResult_t result = ncclSuccess;
    for (const NcclCall& call : calls_) {
      result = Call(call, args, stream);
      if (result != ncclSuccess && result != ncclInProgress) break;
    }
    auto* const flags = flags_ != nullptr ? flags_->data() : nullptr;
    if (flags != nullptr && (result == ncclSuccess || result == ncclInProgress)) {
      result = ExchangeFlags(stream);
    }
    const ncclResult_t ended = api.group_end();
    const bool has_failed = result != ncclSuccess && result != ncclInProgress;
    RETURN_IF_ERROR(group_->Check(has_failed ? result : ended));
    if (flags == nullptr) return absl::OkStatus();
    stream_.Copy(const_cast<int32_t*>(gpu_stream_.peer_fault()->flags),
                 flags + (peer_ != kNoPeer ? kFlagBytes : 0), kFlagBytes, CopyKind::kDeviceToHost);
    gpu_stream_.SetPeerLaunch(args.launch);
    return absl::OkStatus();
  }

  absl::Status Check() override { return group_->Poll(); }

 private:
  static constexpr int kNoPeer = -1;

  // Of all members, in place. The other member's of a message come behind the own ones: NCCL then
  // needs one kernel for the message and its flags.
  ncclResult_t ExchangeFlags(CUstream_st* stream) const {
    const NcclApi& api = group_->api();
    const ncclComm_t comm = group_->comm();
    std::byte* const flags = flags_->data();
    if (peer_ == kNoPeer) {
      return api.all_reduce(flags, flags, kNumFlags, ncclInt32, ncclMax, comm, stream);
    }
    const ncclResult_t sent = api.send(flags, kNumFlags, ncclInt32, peer_, comm, stream);
    if (sent != ncclSuccess && sent != ncclInProgress) return sent;
    return api.receive(flags + kFlagBytes, kNumFlags, ncclInt32, peer_, comm, stream);
  }

  // Before the run, in the stream's order.
  void SetFlags(bool is_poisoned) {
    auto* const flags = reinterpret_cast<int32_t*>(flags_->data());
    const auto* const constants = reinterpret_cast<const int32_t*>(constants_->data());
    const auto copy = [&](int32_t* to, const int32_t* from) {
      stream_.Copy(to, from, sizeof(int32_t), CopyKind::kHostToDevice);
    };
    copy(flags, const_cast<const int32_t*>(gpu_stream_.device_fault()));
    if (const uint64_t resets = gpu_stream_.num_resets(); resets != num_resets_) {
      copy(flags + 1, constants);
      num_resets_ = resets;
    }
    if (is_poisoned) copy(flags + 1, constants + 1);
  }

  ncclResult_t Call(const NcclCall& call, const StreamCollectiveArgs& args,
                    CUstream_st* stream) const {
    const NcclApi& api = group_->api();
    const ncclComm_t comm = group_->comm();
    const auto count = static_cast<size_t>(call.count);
    const auto* input = static_cast<const std::byte*>(args.inputs[call.tensor]) + call.input;
    auto* output = static_cast<std::byte*>(args.outputs[call.tensor]) + call.output;
    switch (call.kind) {
      case NcclCall::kAllReduce:
        return api.all_reduce(input, output, count, type_, operation_, comm, stream);
      case NcclCall::kReduceScatter:
        return api.reduce_scatter(input, output, count, type_, operation_, comm, stream);
      case NcclCall::kAllGather:
        return api.all_gather(input, output, count, type_, comm, stream);
      case NcclCall::kReduce:
        return api.reduce(input, output, count, type_, operation_, call.peer, comm, stream);
      case NcclCall::kBroadcast:
        return api.broadcast(input, output, count, type_, call.peer, comm, stream);
      case NcclCall::kSend:
        return api.send(input, count, type_, call.peer, comm, stream);
      case NcclCall::kReceive:
        return api.receive(output, count, type_, call.peer, comm, stream);
    }
    return ncclInternalError;
  }

  const std::shared_ptr<NcclGroup> group_;
  const std::vector<NcclCall> calls_;
  const int peer_;  // of a message: the other rank
  const ncclDataType_t type_;
  const ncclRedOp_t operation_;
  Stream& stream_;
  GpuStream& gpu_stream_;
  // Of the device, the member's own and then room for another's; null: it tells no failures.
  const std::unique_ptr<Memory> flags_;
  const std::shared_ptr<Memory> constants_;  // 0 and 1, pinned
  uint64_t num_resets_ = 0;
};

// The unique id by which the member with a rank joins a group.
using FindUniqueId =
    std::function<absl::StatusOr<ncclUniqueId>(const DeviceGroup& group, int rank)>;

absl::StatusOr<ncclUniqueId> CreateUniqueId(const NcclApi& api) {
  ncclUniqueId id = {};
  const ncclResult_t result = api.get_unique_id(&id);
  if (result == ncclSuccess) return id;
  return absl::InternalError(StrCat("NCCL makes no unique id: ", api.get_error_string(result)));
}

// The unique ids of groups whose members are all in this process and have not all joined.
class LocalIds {
 public:
  // The same for every member of a group, until all have it.
  absl::StatusOr<ncclUniqueId> Take(const NcclApi& api, const DeviceGroup& devices, int rank) {
    const absl::MutexLock lock(&mutex_);
    Group& group = groups_[devices];
    // A member that comes again belongs to another session: the others of the last one never came.
    if (group.members.contains(rank)) group = {};
    if (group.members.empty()) {
      ASSIGN_OR_RETURN(group.id, CreateUniqueId(api));
    }
    group.members.insert(rank);
    const ncclUniqueId id = group.id;
    if (group.members.size() == devices.devices.size()) groups_.erase(devices);
    return id;
  }

 private:
  struct Group {
    ncclUniqueId id = {};
    std::set<int> members;
  };

  absl::Mutex mutex_;
  std::map<DeviceGroup, Group> groups_ ABSL_GUARDED_BY(mutex_);
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclApi& api, const NcclOptions& options, uint32_t index, Device& device,
                   std::shared_ptr<Memory> constants)
      : api_(api),
        options_(options),
        index_(index),
        device_(device),
        constants_(std::move(constants)) {}
  ~NcclCommunicator() override {
    for (const auto& [devices, group] : groups_) group->Close();
  }

  // Starts to join the groups, in their order. REQUIRES: the device is current.
  absl::Status Join(absl::Span<const DeviceGroup> groups, const FindUniqueId& find_id) {
    for (const DeviceGroup& devices : groups) {
      const std::vector<uint32_t>& members = devices.devices;
      const auto found = std::find(members.begin(), members.end(), index_);
      if (found == members.end()) {
        return absl::InvalidArgumentError(
            StrCat("device ", index_, " is not in the group of ", ToString(devices)));
      }
      const auto rank = static_cast<int>(found - members.begin());
      ASSIGN_OR_RETURN(const ncclUniqueId id, find_id(devices, rank));
      auto group = std::make_shared<NcclGroup>(api_, options_, index_, devices, is_cancelled_);
      RETURN_IF_ERROR(group->Join(id, static_cast<int>(members.size()), rank));
      groups_[devices] = std::move(group);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<StreamCollective>> Create(const CollectiveSpec& spec, int rank,
                                                           Stream& stream,
                                                           bool tells_failures) override {
    ASSIGN_OR_RETURN(const ncclDataType_t type, TypeOf(spec));
    const auto group = groups_.find(GroupOf(spec));
    if (group == groups_.end()) {
      return absl::FailedPreconditionError(
          StrCat("device ", index_, " has not joined the group of ", ToString(GroupOf(spec))));
    }
    std::unique_ptr<Memory> flags;
    if (tells_failures) {
      ASSIGN_OR_RETURN(flags, device_.Allocate(2 * kFlagBytes, MemoryKind::kDevice));
    }
    return std::make_unique<NcclCollective>(group->second, spec, rank, type, stream,
                                            dynamic_cast<GpuStream&>(stream), std::move(flags),
                                            constants_);
  }

  void Cancel() override { is_cancelled_->store(true, std::memory_order_relaxed); }

 private:
  const NcclApi api_;
  const NcclOptions options_;
  const uint32_t index_;
  Device& device_;
  const std::shared_ptr<Memory> constants_;
  const std::shared_ptr<std::atomic<bool>> is_cancelled_ =
      std::make_shared<std::atomic<bool>>(false);
  std::map<DeviceGroup, std::shared_ptr<NcclGroup>> groups_;
};

CommunicatorFactory CreateFactory(NcclApi api, const NcclOptions& options, FindUniqueId find_id) {
  return
      [api = std::move(api), options, find_id = std::move(find_id)](
          uint32_t index, Device& device,
          absl::Span<const DeviceGroup> groups) -> absl::StatusOr<std::unique_ptr<Communicator>> {
        const std::unique_ptr<Stream> stream = device.CreateStream();
        auto* gpu_stream = dynamic_cast<GpuStream*>(stream.get());
        if (gpu_stream == nullptr) {
          return absl::FailedPreconditionError(
              StrCat("collectives of NCCL need GPUs, not a ", device.kind(), " device"));
        }
        ASSIGN_OR_RETURN(std::unique_ptr<Memory> constants,
                         device.Allocate(2 * sizeof(int32_t), MemoryKind::kPinned));
        auto* numbers = reinterpret_cast<int32_t*>(constants->data());
        numbers[0] = 0;
        numbers[1] = 1;
        auto communicator =
            std::make_unique<NcclCommunicator>(api, options, index, device, std::move(constants));
        // Makes the device current.
        if (gpu_stream->handle() == nullptr) {
          return absl::FailedPreconditionError(StrCat("device ", index, " has no streams"));
        }
        RETURN_IF_ERROR(communicator->Join(groups, find_id));
        return communicator;
      };
}

class NcclSource final : public CommunicatorSource {
 public:
  NcclSource(NcclApi api, std::function<std::string(uint32_t index)> gpu_of,
             const NcclOptions& options, int version)
      : api_(std::move(api)), gpu_of_(std::move(gpu_of)), options_(options), version_(version) {}

  std::string name() const override { return NcclName(version_); }
  std::string HardwareOf(uint32_t index) const override { return gpu_of_(index); }

  absl::StatusOr<std::string> CreateGroupId() override {
    ASSIGN_OR_RETURN(const ncclUniqueId id, CreateUniqueId(api_));
    return std::string(id.internal, sizeof(id.internal));
  }

  CommunicatorFactory CreateFactory(GroupIds ids) override {
    return transport::CreateFactory(
        api_, options_,
        [ids = std::move(ids)](const DeviceGroup& group, int) -> absl::StatusOr<ncclUniqueId> {
          const auto found = ids.find(group);
          ncclUniqueId id = {};
          if (found == ids.end() || found->second.size() != sizeof(id.internal)) {
            return absl::InvalidArgumentError(
                StrCat("there is no unique id of NCCL for the group of ", ToString(group)));
          }
          std::memcpy(id.internal, found->second.data(), sizeof(id.internal));
          return id;
        });
  }

 private:
  const NcclApi api_;
  const std::function<std::string(uint32_t index)> gpu_of_;
  const NcclOptions options_;
  const int version_;
};

}  // namespace

CommunicatorFactory CreateNcclCommunicators(NcclApi api, const NcclOptions& options) {
  FindUniqueId find_id = [api, ids = std::make_shared<LocalIds>()](const DeviceGroup& group,
                                                                   int rank) {
    return ids->Take(api, group, rank);
  };
  return CreateFactory(std::move(api), options, std::move(find_id));
}

absl::StatusOr<std::shared_ptr<CommunicatorSource>> CreateNcclSource(
    NcclApi api, std::function<std::string(uint32_t index)> gpu_of, const NcclOptions& options) {
  int version = 0;
  if (api.get_version(&version) != ncclSuccess) {
    return absl::FailedPreconditionError("NCCL does not tell its version");
  }
  return std::make_shared<NcclSource>(std::move(api), std::move(gpu_of), options, version);
}

}  // namespace penstock::transport
