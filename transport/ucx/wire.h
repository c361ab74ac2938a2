// The protocol between the processes of a job, and the address that a process hands out.
//
// A message is one active message of UCX: a header with the complete tag, and the bytes. Short
// messages are eager: the bytes follow the header. Of a long one, the header announces that the
// bytes can be fetched (rendezvous). Those of a very long one over a network are fetched in chunks,
// so that its receiver decides what the link carries next. The receiver acknowledges every message
// that it has taken or refused. The sender may request the cancellation of a message:
//
//   sender                                                receiver
//   Send ---- MessageHeader + bytes ---------------> a Recv with its tag takes it, or it waits
//   Cancel -- CancelRequest -----------------------> dropped, if nothing has taken it
//   request ends <------------------------- Ack ---- delivered, cancelled, or of another size
//   goes on      <------------------------- Ack ---- taken: another ack follows with the bytes
//
//   Send ---- MessageHeader alone -----------------> a Recv with its tag takes it
//        <--------------------------- FetchRequest -- once a chunk
//        ---- ChunkHeader + chunk ----------------->
//
// If the bytes of a long message lie in memory that the sender shares (shared_memory.h), the header
// names the place as well. A receiver on the same host then reads them there.
//
// An AckBatch without acks is a greeting: a sign of life. A probe, which is an Origin alone, asks
// for a greeting.
//
// Structs are in the byte order of the machine: all processes of a job run on one architecture.
// Nothing that arrives is trusted: lengths, ids and keys are checked before use, and whatever fails
// a check is dropped and counted. Anyone who can read the traffic can forge it: see
// ucx_transport.h.

#ifndef PENSTOCK_TRANSPORT_UCX_WIRE_H_
#define PENSTOCK_TRANSPORT_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "transport/ucx/shared_memory.h"
#include "transport/ucx/tcp_links.h"

namespace penstock::transport::ucx {

// Ids of active messages.
enum MessageId : unsigned {
  kMessageId = 1,
  kAcksId = 2,
  kCancelRequestId = 3,
  kProbeId = 4,
  kFetchRequestId = 5,
  kChunkId = 6,
};

// Longest message whose bytes travel with the header: one segment of the common transports.
inline constexpr size_t kMaxEagerBytes = 8000;

// Longer messages whose receiver cannot read the sender's memory travel in chunks of this length,
// of which the last may be shorter. A link of 1 Gbit/s carries one in 9 ms.
inline constexpr uint64_t kNetworkChunkBytes = 1 << 20;

// The beginning of everything that is sent.
struct Origin {
  uint64_t key = 0;  // of the receiving endpoint, from its address
  uint32_t generation = 0;
  uint32_t source = 0;  // the sending device
};

// The sender's name for one of its operations: a slot and how often the slot was used before.
struct OperationId {
  uint32_t index = 0;
  uint32_t use = 0;
  friend bool operator==(const OperationId&, const OperationId&) = default;
};

struct MessageHeader {
  Origin origin;
  uint64_t serial = 0;  // grows with every message of a source to a receiver
  uint64_t sequence = 0;
  uint64_t num_bytes = 0;
  uint32_t channel = 0;
  uint32_t flags = 0;
  OperationId operation;
  uint64_t place = kNoPlace;  // of the bytes, if they may be read there
};
static_assert(sizeof(MessageHeader) == 64);

struct CancelRequest {
  Origin origin;
  OperationId operation;
  uint64_t channel = 0;
};
static_assert(sizeof(CancelRequest) == 32);

// Sent by the receiver to get the chunk at `offset`, a multiple of kNetworkChunkBytes.
struct FetchRequest {
  Origin origin;
  OperationId send;     // of the MessageHeader
  OperationId receive;  // for the ChunkHeader
  uint64_t offset = 0;
};
static_assert(sizeof(FetchRequest) == 40);

struct ChunkHeader {
  Origin origin;
  OperationId receive;
  uint64_t offset = 0;
};
static_assert(sizeof(ChunkHeader) == 32);

struct Ack {
  enum Kind : uint32_t {
    kDelivered = 0,
    kCancelled = 1,
    kSizeMismatch = 2,
    kTaken = 3,  // a sign of life of a receiver that cannot fetch the bytes yet
  };

  OperationId operation;
  uint32_t kind = kDelivered;
  uint32_t reserved = 0;
  uint64_t expected_bytes = 0;  // by the receiver, where kind is kSizeMismatch
};
static_assert(sizeof(Ack) == 24);

inline constexpr int kMaxAcks = 16;

// An Origin and up to kMaxAcks acks; only those in use are sent.
struct AckBatch {
  Origin origin;
  Ack acks[kMaxAcks];
};
static_assert(sizeof(AckBatch) == sizeof(Origin) + kMaxAcks * sizeof(Ack));

// Where the devices of one process are reached.
struct ProcessAddress {
  struct Device {
    uint64_t key = 0;     // every message to the device must name it
    std::string worker;   // UCX's bytes
    std::string network;  // the same, without shared memory
  };

  uint32_t generation = 0;
  uint32_t first_device = 0;
  // Processes of different network namespaces use `network`: what UCX wakes a sleeping peer with
  // after a write to shared memory does not reach another namespace, and a namespace may stand for
  // a host, whose links are meant to be used.
  uint64_t network_namespace = 0;
  SharedAddress shared;
  // Of its host: by these its connections are recognised (tcp_links.h).
  std::vector<NetworkAddress> network_addresses;
  std::vector<Device> devices;
};

std::string EncodeAddress(const ProcessAddress& address);

// Refuses bytes that EncodeAddress did not make, by magic number, lengths and a checksum. That
// catches accidents only; UCX does not withstand deliberately forged addresses.
absl::StatusOr<ProcessAddress> DecodeAddress(std::string_view bytes);

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_WIRE_H_
