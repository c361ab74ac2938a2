// Collectives and messages that devices run themselves, as work on their streams: NCCL's on GPUs,
// or those of emulated devices (emulated/emulated_communicator.h). The host launches them, and
// neither waits for them nor touches their data. transport/collective.h has those that the host
// runs.
//
// A message is a collective, too: the permute of two devices of which only the first brings
// something. So it is a rendezvous, in which the sender's stream may wait for the receiver's.
//
// Thread rule: a Communicator and what it makes belong to the executor of their device.
// Invariants: every member launches the runs of a collective in the same order. Runs of different
// collectives are matched by their order, too, where these share a communicator: NCCL adds up what
// it is given, whether the members mean the same collective or not. But for NCCL's, results have
// the association that base/collective.h defines.

#ifndef PENSTOCK_TRANSPORT_STREAM_COLLECTIVE_H_
#define PENSTOCK_TRANSPORT_STREAM_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/collective.h"
#include "base/device.h"

namespace penstock::transport {

// What one run of a collective works on.
struct StreamCollectiveArgs {
  // On the device, of each tensor: what is read, as for Collective::StartTensors.
  const void* const* inputs = nullptr;
  void* const* outputs = nullptr;  // likewise, what is written
  // The data mean nothing, but the run takes place: where a member is poisoned, or its stream has
  // an error, the streams of all others have one afterwards, kAborted, if the collective tells
  // failures.
  bool is_poisoned = false;
  uint64_t launch = kNoLaunch;  // names the run in an error of the stream
};

// One member's part of a collective, on one stream of its device.
class StreamCollective {
 public:
  virtual ~StreamCollective() = default;
  // Gives a run to the stream. Allocates nothing. An error is one of launching.
  virtual absl::Status Launch(const StreamCollectiveArgs& args) = 0;
  // What has gone wrong since a launch, as far as the host is told of it. Does not wait. After an
  // error, the stream no longer waits for other members, its data mean nothing, and launches fail.
  virtual absl::Status Check() { return absl::OkStatus(); }
};

// Connects a device to the other members. It may be destroyed before its collectives, which must
// not be launched afterwards; that aborts operations of NCCL that wait for missing members.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // `stream` is one of the device and outlives the last run, but not the result. With
  // `tells_failures`, members learn from it that another one has failed; without, they learn it
  // from another collective and have meaningless data until then. REQUIRES: CheckCollective(spec)
  // is OK, `rank` is that of the device, the device has joined GroupOf(spec), and all members agree
  // on `tells_failures`.
  virtual absl::StatusOr<std::unique_ptr<StreamCollective>> Create(const CollectiveSpec& spec,
                                                                   int rank, Stream& stream,
                                                                   bool tells_failures) = 0;
  // Any thread: launches that wait for other members on the host fail with kCancelled from now on.
  // What waits on the device goes on until the communicator is destroyed.
  virtual void Cancel() {}
};

// A message of `num_bytes` from device `source`.
CollectiveSpec MessageOf(uint32_t channel, uint32_t source, uint32_t destination,
                         uint64_t num_bytes);
// Whether the collective is what MessageOf makes.
bool IsMessage(const CollectiveSpec& spec);

// What a group of devices does.
enum class GroupUse : uint8_t {
  kCollectives,
  kMessages,       // from the first device to the second
  kSmallMessages,  // likewise, of at most kSmallMessageBytes
};
// The most bytes that a message of GroupUse::kSmallMessages has.
inline constexpr uint64_t kSmallMessageBytes = 64 << 10;

// Thread blocks of a GPU that a message takes: enough for a good part of a link's bandwidth, and
// few enough to leave most of a GPU to what computes while messages wait for their other side.
inline constexpr int kMessageBlocks = 4;
inline constexpr int kSmallMessageBlocks = 1;  // of a small one

// Devices of a plan that run collectives together, or exchange messages in one direction: what a
// communicator joins. Messages have groups of their own, so that they do not wait for collectives
// of the same devices, nor for messages in the other direction.
struct DeviceGroup {
  DeviceGroup() = default;
  // Of collectives, by rank.
  DeviceGroup(std::initializer_list<uint32_t> devices) : devices(devices) {}
  // Of any use, by rank.
  explicit DeviceGroup(std::vector<uint32_t> devices, GroupUse use = GroupUse::kCollectives)
      : devices(std::move(devices)), use(use) {}

  std::vector<uint32_t> devices;          // by rank; of messages: source, destination
  GroupUse use = GroupUse::kCollectives;  // by which devices have several groups
  friend auto operator<=>(const DeviceGroup&, const DeviceGroup&) = default;
  friend bool operator==(const DeviceGroup&, const DeviceGroup&) = default;
};
// The group that runs it.
DeviceGroup GroupOf(const CollectiveSpec& spec);
// "devices 0, 1", or "messages from device 0 to device 1".
std::string ToString(const DeviceGroup& group);

// A communicator for device `index` of a plan. `groups` are all of which it is a member, in one
// order for all devices of the plan, such as the increasing one: members of several groups may join
// them one after another, and would wait for each other for ever in different orders.
using CommunicatorFactory = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
    uint32_t index, Device& device, absl::Span<const DeviceGroup> groups)>;

// What the members of a group find each other by, such as a unique id of NCCL. One process makes
// it, and whoever has it can join: it travels over authenticated connections alone.
using GroupIds = std::map<DeviceGroup, std::string>;
// The longest id that a process takes from another one, in bytes.
inline constexpr size_t kMaxGroupIdBytes = 4096;

// The communicators of a process whose devices run collectives with those of other processes.
// Thread rule: any thread.
class CommunicatorSource {
 public:
  virtual ~CommunicatorSource() = default;
  // What moves the data, with its version, such as "NCCL 2.28.9": all members must have the same.
  virtual std::string name() const = 0;
  // Names what device `index` of a plan computes on: members of a group need different ones.
  virtual std::string HardwareOf(uint32_t index) const = 0;
  // For a group that has not been joined yet, by the process of one of its members.
  virtual absl::StatusOr<std::string> CreateGroupId() = 0;
  // For the devices of one session. `ids` has all groups of which they are members.
  virtual CommunicatorFactory CreateFactory(GroupIds ids) = 0;
};

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_STREAM_COLLECTIVE_H_
